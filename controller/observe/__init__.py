"""What the controller reports: metrics, traces, health, labels of nodes."""
