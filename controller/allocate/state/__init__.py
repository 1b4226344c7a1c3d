"""What is known beside the informers: assumed allocations, owners and states of pools, taint rules."""
