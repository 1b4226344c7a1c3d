"""What backends of third parties add to the node agent: effects on their devices, and metrics."""
