"""NVIDIA's driver as it lies on the host: where it is, its library, the nodes that the kernel lacks."""
