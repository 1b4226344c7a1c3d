/* A libnvidia-ml.so.1 without hardware: answers what a text file tells it to.
 *
 * NVML_STUB_CONFIG names the file; it is read by every nvmlInit and, so that hardware can change while the
 * library is open, by every nvmlDeviceGetCount. One "key value" a line:
 *
 *   driver 570.148.08        cuda 12080        count_override 2
 *   fail FUNCTION CODE       (before the first gpu: a call of the system)
 *   gpu                      (the lines that follow belong to it)
 *   bus 00000000:07:00.0     uuid GPU-...      name NVIDIA A100-SXM4-40GB
 *   memory BYTES   minor N   arch N   brand N   cc 8.0   cores N   ecc 1   mode 1   virt 1   mig 0
 *   fabric STATE STATUS CLIQUE CLUSTER(32 hex digits)
 *   nvlink LINK ACTIVE TYPE BUS
 *   profile ENUM ID SLICES COUNT MIB SM CE DEC ENC JPEG OFA SIZE START,START... [NAME]
 *   fail FUNCTION CODE       ("fail * 15": every call, the handle too)
 *   used BYTES   reserved BYTES   utilization GPU MEMORY   temperature N   power MILLIWATTS   supported_events MASK
 *   uncorrected N   remapped CORRECTABLE UNCORRECTABLE PENDING FAILED   retired_pending N   recovery ACTION
 *   event SEQUENCE TYPE DATA [INSTANCE]   (comes once, in the order of the sequence over all GPUs; a wait reads
 *                            the file again until there is one)
 *
 * What a GPU does not have (arch, mig, ...) is NOT_SUPPORTED. Configuration (struct gpu) is apart from state
 * (struct state, instances.inc), which outlives the reading of the file.
 *
 * NVML_STUB_HANG names a file that need not exist: while it lists a function, calls of it do not come back, and
 * others wait for them as for a driver that hangs. "FUNCTION UUID" holds for calls about one GPU ("* UUID" for all
 * of them), and calls about other GPUs do not wait.
 *
 * Calls may come from several threads, as with the real library: each holds one lock, but for the pauses of a wait.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { IS_LOST = 15 };
enum { MAX_GPUS = 32, MAX_FAILS = 64, MAX_LINKS = 18, MAX_PROFILES = 18, MAX_STARTS = 16 };

typedef struct { char function[64]; int code; } failure;
typedef struct { int active, type; char bus[32]; } link_t;
typedef struct {
    int used, id, slices, count, mib, sm, ce, dec, enc, jpeg, ofa, size, starts, start[MAX_STARTS];
    char name[96];
} profile;

struct gpu {
    char bus[32], uuid[96], name[96];
    unsigned long long memory;
    int minor, arch, brand, major_cc, minor_cc, cores, ecc, mode, virt, mig, links;
    int reset_required, compute, busy;
    int fabric, fabric_state, fabric_status;
    unsigned clique;
    unsigned char cluster[16];
    link_t link[MAX_LINKS];
    profile profiles[MAX_PROFILES];
    failure fails[MAX_FAILS];
    int nfails;
    /* What health and metrics ask for; -1 where the GPU does not tell. */
    unsigned long long used, reserved, supported_events;
    int utilization, memory_utilization, temperature, power, uncorrected, retired_pending, recovery;
    int remapped, remap[4];
};

struct state { int references; };

static struct gpu gpus[MAX_GPUS];
static int ngpus, count_override, cuda;
static char driver[80];
static failure system_fails[MAX_FAILS];
static int system_nfails;
static struct state state;

/* Recursive, because some calls make others. */
static pthread_mutex_t mutex;

__attribute__((constructor)) static void prepare_mutex(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static __thread int held; /* how often this thread has the lock */
static int lock(void) { int code = pthread_mutex_lock(&mutex); held++; return code; }
static void unlock(const int *locked) { (void)locked; held--; pthread_mutex_unlock(&mutex); }

/* Holds the lock to the end of the block. */
#define JOINED(a, b) a##b
#define NAMED(number) JOINED(locked_, number)
#define LOCKED() __attribute__((cleanup(unlock), unused)) const int NAMED(__COUNTER__) = lock()

static void clear_gpu(struct gpu *g) {
    memset(g, 0, sizeof *g);
    g->minor = g->arch = g->brand = g->major_cc = g->cores = g->ecc = g->mode = g->virt = g->mig = -1;
    g->utilization = g->temperature = g->power = g->uncorrected = g->retired_pending = g->recovery = -1;
}

static void read_profile(struct gpu *g, const char *value) {
    profile p;
    int number, used = 0;
    char starts[128];
    memset(&p, 0, sizeof p);
    if (sscanf(value, "%i %d %d %d %d %d %d %d %d %d %d %d %127s%n", &number, &p.id, &p.slices, &p.count, &p.mib,
               &p.sm, &p.ce, &p.dec, &p.enc, &p.jpeg, &p.ofa, &p.size, starts, &used) < 13 ||
        number < 0 || number >= MAX_PROFILES)
        return;
    for (char *s = strtok(starts, ","); s && p.starts < MAX_STARTS; s = strtok(NULL, ","))
        p.start[p.starts++] = atoi(s);
    if (value[used] == ' ') snprintf(p.name, sizeof p.name, "%s", value + used + 1);
    p.used = 1;
    g->profiles[number] = p;
}

static void read_gpu_line(struct gpu *g, const char *key, const char *value) {
    if (!strcmp(key, "bus")) snprintf(g->bus, sizeof g->bus, "%s", value);
    else if (!strcmp(key, "uuid")) snprintf(g->uuid, sizeof g->uuid, "%s", value);
    else if (!strcmp(key, "name")) snprintf(g->name, sizeof g->name, "%s", value);
    else if (!strcmp(key, "memory")) g->memory = strtoull(value, NULL, 10);
    else if (!strcmp(key, "minor")) g->minor = atoi(value);
    else if (!strcmp(key, "arch")) g->arch = atoi(value);
    else if (!strcmp(key, "brand")) g->brand = atoi(value);
    else if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &g->major_cc, &g->minor_cc);
    else if (!strcmp(key, "cores")) g->cores = atoi(value);
    else if (!strcmp(key, "ecc")) g->ecc = atoi(value);
    else if (!strcmp(key, "mode")) g->mode = atoi(value);
    else if (!strcmp(key, "virt")) g->virt = atoi(value);
    else if (!strcmp(key, "mig")) g->mig = atoi(value);
    else if (!strcmp(key, "reset_required")) g->reset_required = atoi(value);
    else if (!strcmp(key, "compute")) g->compute = atoi(value);
    else if (!strcmp(key, "busy")) g->busy = atoi(value);
    else if (!strcmp(key, "profile")) read_profile(g, value);
    else if (!strcmp(key, "used")) g->used = strtoull(value, NULL, 10);
    else if (!strcmp(key, "reserved")) g->reserved = strtoull(value, NULL, 10);
    else if (!strcmp(key, "supported_events")) g->supported_events = strtoull(value, NULL, 0);
    else if (!strcmp(key, "utilization")) sscanf(value, "%d %d", &g->utilization, &g->memory_utilization);
    else if (!strcmp(key, "temperature")) g->temperature = atoi(value);
    else if (!strcmp(key, "power")) g->power = atoi(value);
    else if (!strcmp(key, "uncorrected")) g->uncorrected = atoi(value);
    else if (!strcmp(key, "retired_pending")) g->retired_pending = atoi(value);
    else if (!strcmp(key, "recovery")) g->recovery = atoi(value);
    else if (!strcmp(key, "remapped"))
        g->remapped = sscanf(value, "%d %d %d %d", &g->remap[0], &g->remap[1], &g->remap[2], &g->remap[3]) == 4;
    else if (!strcmp(key, "fabric")) {
        char hex[33] = "";
        g->fabric = 1;
        sscanf(value, "%d %d %u %32s", &g->fabric_state, &g->fabric_status, &g->clique, hex);
        for (int i = 0; i < 16; i++) {
            unsigned byte = 0;
            sscanf(hex + 2 * i, "%2x", &byte);
            g->cluster[i] = (unsigned char)byte;
        }
    } else if (!strcmp(key, "nvlink")) {
        int number = -1;
        link_t l;
        memset(&l, 0, sizeof l);
        sscanf(value, "%d %d %d %31s", &number, &l.active, &l.type, l.bus);
        if (number >= 0 && number < MAX_LINKS) {
            g->link[number] = l;
            if (number >= g->links) g->links = number + 1;
        }
    }
}

static void read_config(void) {
    const char *path = getenv("NVML_STUB_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    struct gpu *g = NULL;
    ngpus = system_nfails = cuda = 0;
    count_override = -1;
    driver[0] = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *value = strchr(line, ' ');
        if (value) *value++ = 0;
        else value = line + strlen(line);
        if (!strcmp(line, "gpu") && ngpus < MAX_GPUS) {
            g = &gpus[ngpus++];
            clear_gpu(g);
        } else if (!strcmp(line, "fail")) {
            failure *fails = g ? g->fails : system_fails;
            int *n = g ? &g->nfails : &system_nfails;
            if (*n < MAX_FAILS && sscanf(value, "%63s %d", fails[*n].function, &fails[*n].code) == 2) (*n)++;
        } else if (g) read_gpu_line(g, line, value);
        else if (!strcmp(line, "driver")) snprintf(driver, sizeof driver, "%s", value);
        else if (!strcmp(line, "cuda")) cuda = atoi(value);
        else if (!strcmp(line, "count_override")) count_override = atoi(value);
    }
    fclose(file);
}

static int failing(const failure *fails, int n, const char *function) {
    for (int i = 0; i < n; i++)
        if (!strcmp(fails[i].function, function) || !strcmp(fails[i].function, "*")) return fails[i].code;
    return OK;
}

/* Whether the file lists the function, for all calls of it (no UUID) or for those about one GPU. */
static int listed(const char *function, const char *uuid) {
    const char *path = getenv("NVML_STUB_HANG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], name[80], gpu[96];
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        int words = sscanf(line, "%79s %95s", name, gpu);
        if (words == (uuid ? 2 : 1) && (!strcmp(name, function) || (uuid && !strcmp(name, "*"))) &&
            (!uuid || !strcmp(gpu, uuid)))
            found = 1;
    }
    if (file) fclose(file);
    return found;
}

static const struct timespec a_moment = {.tv_nsec = 10 * 1000 * 1000};

/* Called with the lock held, which is what makes other calls wait. */
static void hang(const char *function) {
    while (listed(function, NULL)) nanosleep(&a_moment, NULL);
}

/* Gives up the lock, however often it is held, while it waits. */
static void hang_about(const struct gpu *g, const char *function) {
    char uuid[96];
    if (g < gpus || g >= gpus + ngpus) return;
    snprintf(uuid, sizeof uuid, "%s", g->uuid);
    while (listed(function, uuid)) {
        int times = held;
        for (int i = 0; i < times; i++) pthread_mutex_unlock(&mutex);
        nanosleep(&a_moment, NULL);
        for (int i = 0; i < times; i++) pthread_mutex_lock(&mutex);
        held = times;
    }
}

static int check_system(const char *function) {
    return state.references ? failing(system_fails, system_nfails, function) : UNINITIALIZED;
}

static int check(const struct gpu *g, const char *function) {
    if (!state.references) return UNINITIALIZED;
    if (g < gpus || g >= gpus + ngpus) return INVALID_ARGUMENT;
    return failing(g->fails, g->nfails, function);
}

#define SYSTEM() LOCKED(); hang(__func__); do { int r_ = check_system(__func__); if (r_) return r_; } while (0)
#define GPU(g) LOCKED(); hang(__func__); hang_about(g, __func__); do { int r_ = check(g, __func__); if (r_) return r_; } while (0)

static int put(const char *text, char *buffer, unsigned size) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    memcpy(buffer, text, strlen(text) + 1);
    return OK;
}

static int number(int value, unsigned *out) {
    if (value < 0) return NOT_SUPPORTED;
    *out = (unsigned)value;
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    LOCKED();
    hang(__func__);
    (void)flags;
    read_config();
    int code = failing(system_fails, system_nfails, __func__);
    if (code == OK) state.references++;
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    SYSTEM();
    state.references--;
    return OK;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }

int nvmlSystemGetDriverVersion(char *buffer, unsigned size) { SYSTEM(); return put(driver, buffer, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) { SYSTEM(); *version = cuda; return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    LOCKED();
    if (state.references) read_config();
    SYSTEM();
    *count = (unsigned)(count_override >= 0 ? count_override : ngpus);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    LOCKED();
    if (!state.references) return UNINITIALIZED;
    if (index >= (unsigned)ngpus) return INVALID_ARGUMENT;
    GPU(&gpus[index]);
    *handle = &gpus[index];
    return OK;
}

/* Asks the GPU at the address alone. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct gpu **handle) {
    unsigned domain, number, device, other[3];
    LOCKED();
    if (!state.references) return UNINITIALIZED;
    if (sscanf(bus, "%x:%x:%x", &domain, &number, &device) != 3) return INVALID_ARGUMENT;
    for (int i = 0; i < ngpus; i++)
        if (sscanf(gpus[i].bus, "%x:%x:%x", &other[0], &other[1], &other[2]) == 3 && other[0] == domain &&
            other[1] == number && other[2] == device) {
            GPU(&gpus[i]);
            *handle = &gpus[i];
            return OK;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetName(struct gpu *g, char *buffer, unsigned size) { GPU(g); return put(g->name, buffer, size); }

int nvmlDeviceGetMinorNumber(struct gpu *g, unsigned *minor) { GPU(g); return number(g->minor, minor); }

int nvmlDeviceGetArchitecture(struct gpu *g, unsigned *arch) { GPU(g); return number(g->arch, arch); }

int nvmlDeviceGetBrand(struct gpu *g, unsigned *brand) { GPU(g); return number(g->brand, brand); }

int nvmlDeviceGetNumGpuCores(struct gpu *g, unsigned *cores) { GPU(g); return number(g->cores, cores); }

int nvmlDeviceGetVirtualizationMode(struct gpu *g, unsigned *mode) { GPU(g); return number(g->virt, mode); }

int nvmlDeviceGetEccMode(struct gpu *g, unsigned *current, unsigned *pending) {
    GPU(g);
    int code = number(g->ecc, current);
    if (code == OK) *pending = *current;
    return code;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor) {
    GPU(g);
    if (g->major_cc < 0) return NOT_SUPPORTED;
    *major = g->major_cc;
    *minor = g->minor_cc;
    return OK;
}

typedef struct { unsigned version, value; } addressing_mode;
int nvmlDeviceGetAddressingMode(struct gpu *g, addressing_mode *mode) { GPU(g); return number(g->mode, &mode->value); }

typedef struct { unsigned long long total, free, used; } memory_info;
static int mig_memory(const void *handle, memory_info *info);
int nvmlDeviceGetMemoryInfo(struct gpu *g, memory_info *info) {
    LOCKED();
    if (state.references && mig_memory(g, info)) return OK;
    GPU(g);
    if (!g->memory) return NOT_SUPPORTED;
    info->total = g->memory;
    info->used = g->used + g->reserved;
    info->free = g->memory - info->used;
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_info_v2;
int nvmlDeviceGetMemoryInfo_v2(struct gpu *g, memory_info_v2 *info) {
    LOCKED();
    memory_info part;
    if (state.references && mig_memory(g, &part)) {
        info->total = part.total, info->free = part.free, info->used = part.used, info->reserved = 0;
        return OK;
    }
    GPU(g);
    if (!g->memory) return NOT_SUPPORTED;
    info->total = g->memory;
    info->reserved = g->reserved;
    info->used = g->used;
    info->free = g->memory - g->used - g->reserved;
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

static void fill_pci(const char *bus, pci_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", bus);
    if (sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) info->bus = 0xFFFF;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *g, pci_info *info) { GPU(g); fill_pci(g->bus, info); return OK; }

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
} fabric_info;
int nvmlDeviceGetGpuFabricInfoV(struct gpu *g, fabric_info *info) {
    GPU(g);
    if (!g->fabric) return NOT_SUPPORTED;
    memcpy(info->cluster, g->cluster, 16);
    info->status = (unsigned)g->fabric_status;
    info->clique = g->clique;
    info->state = (unsigned char)g->fabric_state;
    return OK;
}

int nvmlDeviceGetNvLinkState(struct gpu *g, unsigned link, unsigned *active) {
    GPU(g);
    if (!g->links) return NOT_SUPPORTED;
    if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
    *active = (unsigned)g->link[link].active;
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *g, unsigned link, unsigned *type) {
    GPU(g);
    if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
    return number(g->link[link].type, type);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *g, unsigned link, pci_info *info) {
    GPU(g);
    if (link >= (unsigned)g->links) return INVALID_ARGUMENT;
    fill_pci(g->link[link].bus, info);
    return OK;
}

typedef struct {
    unsigned version, id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa;
    unsigned long long mib;
    char name[96];
} profile_info;
int nvmlDeviceGetGpuInstanceProfileInfoV(struct gpu *g, unsigned number_, profile_info *info) {
    GPU(g);
    if (number_ >= MAX_PROFILES) return INVALID_ARGUMENT;
    const profile *p = &g->profiles[number_];
    if (!p->used) return NOT_SUPPORTED;
    profile_info filled = {.version = info->version, .id = (unsigned)p->id, .slices = (unsigned)p->slices,
                           .count = (unsigned)p->count, .sm = (unsigned)p->sm, .ce = (unsigned)p->ce,
                           .dec = (unsigned)p->dec, .enc = (unsigned)p->enc, .jpeg = (unsigned)p->jpeg,
                           .ofa = (unsigned)p->ofa, .mib = (unsigned long long)p->mib};
    snprintf(filled.name, sizeof filled.name, "%s", p->name);
    *info = filled;
    return OK;
}

/* The form before driver 470: neither version nor name. */
typedef struct {
    unsigned id, p2p, slices, count, sm, ce, dec, enc, jpeg, ofa;
    unsigned long long mib;
} old_profile_info;
int nvmlDeviceGetGpuInstanceProfileInfo(struct gpu *g, unsigned number_, old_profile_info *info) {
    GPU(g);
    if (number_ >= MAX_PROFILES) return INVALID_ARGUMENT;
    const profile *p = &g->profiles[number_];
    if (!p->used) return NOT_SUPPORTED;
    old_profile_info filled = {.id = (unsigned)p->id, .slices = (unsigned)p->slices, .count = (unsigned)p->count,
                               .sm = (unsigned)p->sm, .ce = (unsigned)p->ce, .dec = (unsigned)p->dec,
                               .enc = (unsigned)p->enc, .jpeg = (unsigned)p->jpeg, .ofa = (unsigned)p->ofa,
                               .mib = (unsigned long long)p->mib};
    *info = filled;
    return OK;
}

typedef struct { unsigned start, size; } placement;
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct gpu *g, unsigned id, placement *out, unsigned *count) {
    GPU(g);
    for (int i = 0; i < MAX_PROFILES; i++) {
        const profile *p = &g->profiles[i];
        if (!p->used || (unsigned)p->id != id) continue;
        if (out) {
            if (*count < (unsigned)p->starts) return INSUFFICIENT_SIZE;
            for (int k = 0; k < p->starts; k++) {
                out[k].start = (unsigned)p->start[k];
                out[k].size = (unsigned)p->size;
            }
        }
        *count = (unsigned)p->starts;
        return OK;
    }
    return INVALID_ARGUMENT;
}

/* --- health and metrics -------------------------------------------------------------------------------------- */

typedef struct { unsigned gpu, memory; } utilization_rates;
int nvmlDeviceGetUtilizationRates(struct gpu *g, utilization_rates *rates) {
    GPU(g);
    rates->memory = (unsigned)g->memory_utilization;
    return number(g->utilization, &rates->gpu);
}

int nvmlDeviceGetTemperature(struct gpu *g, unsigned sensor, unsigned *celsius) {
    GPU(g);
    (void)sensor;
    return number(g->temperature, celsius);
}

int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *milliwatts) { GPU(g); return number(g->power, milliwatts); }

int nvmlDeviceGetTotalEccErrors(struct gpu *g, unsigned type, unsigned counter, unsigned long long *count) {
    GPU(g);
    if (g->uncorrected < 0) return NOT_SUPPORTED;
    *count = type == 1 && counter == 0 ? (unsigned long long)g->uncorrected : 0;
    return OK;
}

int nvmlDeviceGetRemappedRows(struct gpu *g, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    GPU(g);
    if (!g->remapped) return NOT_SUPPORTED;
    *correctable = (unsigned)g->remap[0];
    *uncorrectable = (unsigned)g->remap[1];
    *pending = (unsigned)g->remap[2];
    *failed = (unsigned)g->remap[3];
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct gpu *g, unsigned *pending) {
    GPU(g);
    return number(g->retired_pending, pending);
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union { unsigned number; unsigned long long large; } value;
} field_value;
int nvmlDeviceGetFieldValues(struct gpu *g, int count, field_value *values) {
    GPU(g);
    for (int i = 0; i < count; i++) {
        int known = values[i].field == 230 && g->recovery >= 0;
        values[i].code = known ? OK : NOT_SUPPORTED;
        if (known) values[i].value.number = (unsigned)g->recovery;
    }
    return OK;
}

static int event_sets;
static long delivered;  /* sequence number of the last event; survives the set, as an event comes once */

int nvmlEventSetCreate(int **set) { SYSTEM(); event_sets++; *set = &event_sets; return OK; }

int nvmlEventSetFree(int *set) { LOCKED(); (void)set; event_sets--; return OK; }

int nvmlDeviceGetSupportedEventTypes(struct gpu *g, unsigned long long *types) {
    GPU(g);
    *types = g->supported_events;
    return OK;
}

int nvmlDeviceRegisterEvents(struct gpu *g, unsigned long long types, int *set) {
    GPU(g);
    (void)set;
    return types ? OK : NOT_SUPPORTED;
}

typedef struct {
    struct gpu *device;
    unsigned long long type, data;
    unsigned instance, compute_instance;
} event_data;

/* Reads the file by itself: another thread may be in read_config. "event" lines of GPU n belong to gpus[n]. */
static int next_event(event_data *found) {
    const char *path = getenv("NVML_STUB_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    long first = 0;
    int gpu = -1, code = 10; /* TIMEOUT */
    if (!file) return code;
    while (fgets(line, sizeof line, file)) {
        long sequence = 0;
        event_data e = {.instance = 0xFFFFFFFF, .compute_instance = 0xFFFFFFFF};
        if (!strncmp(line, "gpu", 3)) gpu++;
        if (gpu < 0 || sscanf(line, "event %ld %lli %lli %u", &sequence, (long long *)&e.type,
                              (long long *)&e.data, &e.instance) < 3)
            continue;
        if (sequence <= delivered || (first && sequence > first)) continue;
        first = sequence;
        e.device = &gpus[gpu];
        *found = e;
        code = OK;
    }
    fclose(file);
    if (code == OK) delivered = first;
    return code;
}

int nvmlEventSetWait_v2(int *set, event_data *data, unsigned milliseconds) {
    (void)set;
    { SYSTEM(); }
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    for (;;) {
        int code;
        {
            LOCKED();
            code = next_event(data);
        }
        if (code == OK || milliseconds == 0) return code;
        nanosleep(&pause, NULL);
        milliseconds -= milliseconds < 10 ? milliseconds : 10;
    }
}

#include "instances.inc"

int nvmlDeviceGetUUID(struct gpu *g, char *buffer, unsigned size) {
    LOCKED();
    if (state.references && instance_of(g)) return mig_uuid(g, buffer, size);
    GPU(g);
    return put(g->uuid, buffer, size);
}
