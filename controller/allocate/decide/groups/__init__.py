"""Pods that are allocated together: bounds, levels of topology, and the search over all members."""
