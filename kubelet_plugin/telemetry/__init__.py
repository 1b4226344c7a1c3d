"""What the agent shows: metrics, probes, its state."""
