"""What the allocator works on: pools, devices, what is allocated, and the snapshot of a moment."""
