"""NVIDIA GPUs: NVML, health, MIG, the files of the driver and NVIDIA's CDI document."""
