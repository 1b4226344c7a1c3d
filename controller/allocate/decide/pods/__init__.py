"""What one pod gets: its claims as a question, the devices that answer it, or what is lent to kube-scheduler."""
