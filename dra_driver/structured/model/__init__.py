"""What the allocator works on: pools and devices, their allocations, and the snapshot of a cluster."""
