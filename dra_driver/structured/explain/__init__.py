"""Why nothing fits, per node, request and device, and in words."""
