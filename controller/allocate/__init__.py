"""From pods that wait to allocations."""
