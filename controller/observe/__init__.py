"""What the controller tells: metrics, traces, labels of nodes."""
