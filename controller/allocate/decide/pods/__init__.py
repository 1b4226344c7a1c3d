"""What one pod gets: the question that its claims ask, the devices that answer it, or what is granted."""
