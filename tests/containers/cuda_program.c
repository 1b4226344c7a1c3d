/* Computes on the first GPU that it sees, through the driver's own interface, compiled from PTX by the driver.
 *
 * Prints one "name value" a line: devices, uuid, total (bytes), result (right or wrong); fails with the call that
 * failed. The first argument is the number of bytes that it takes of the GPU's memory; it goes on computing for the
 * seconds of the second one.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NUMBERS 64
#define CALL(name, ...)                                                                     \
    do {                                                                                    \
        int (*named)() = (int (*)())dlsym(cuda, #name);                                     \
        int answer = named ? named(__VA_ARGS__) : -1;                                       \
        if (answer) return fprintf(stderr, "%s: %d\n", #name, answer), 2;                   \
    } while (0)

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry increment(.param .u64 numbers) {\n"
    "  .reg .u64 %address<3>; .reg .u32 %number<3>;\n"
    "  ld.param.u64 %address0, [numbers];\n"
    "  cvta.to.global.u64 %address0, %address0;\n"
    "  mov.u32 %number0, %tid.x;\n"
    "  mul.wide.u32 %address1, %number0, 4;\n"
    "  add.u64 %address2, %address0, %address1;\n"
    "  ld.global.u32 %number1, [%address2];\n"
    "  add.u32 %number2, %number1, 1;\n"
    "  st.global.u32 [%address2], %number2;\n"
    "  ret;\n"
    "}\n";

int main(int argc, char **argv) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *kernel;
    if (!cuda) return fprintf(stderr, "%s\n", dlerror()), 1;
    int devices, device, numbers[NUMBERS];
    unsigned char uuid[16];
    size_t free_bytes, total, wanted = argc > 1 ? strtoull(argv[1], NULL, 10) : sizeof numbers;
    unsigned long long memory;
    void *parameters[] = {&memory};
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &devices);
    printf("devices %d\n", devices);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDeviceGetUuid, uuid, device);
    printf("uuid GPU-");
    for (int i = 0; i < 16; i++) printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
    printf("\ntotal %zu\n", total);
    CALL(cuMemAlloc_v2, &memory, wanted);
    for (int i = 0; i < NUMBERS; i++) numbers[i] = i;
    CALL(cuMemcpyHtoD_v2, memory, numbers, sizeof numbers);
    CALL(cuModuleLoadData, &module, ptx);
    CALL(cuModuleGetFunction, &kernel, module, "increment");
    CALL(cuLaunchKernel, kernel, 1, 1, 1, NUMBERS, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH_v2, numbers, memory, sizeof numbers);
    int right = 1;
    for (int i = 0; i < NUMBERS; i++) right &= numbers[i] == i + 1;
    printf("result %s\n", right ? "right" : "wrong");
    fflush(stdout);
    for (time_t end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 0); time(NULL) < end; usleep(100000)) {
        CALL(cuLaunchKernel, kernel, 1, 1, 1, NUMBERS, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuCtxSynchronize);
    }
    return !right;
}
