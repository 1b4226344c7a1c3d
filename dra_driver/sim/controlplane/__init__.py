"""Stand-ins for kube-scheduler and for the controllers that DRA needs."""
