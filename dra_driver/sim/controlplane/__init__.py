"""Stand-ins for kube-scheduler and the controllers that DRA leans on."""
