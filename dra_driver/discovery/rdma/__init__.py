"""InfiniBand and RoCE adapters."""
