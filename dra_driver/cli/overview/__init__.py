"""What ``dra-driver status`` shows: devices, their memory, who holds them, what waits."""
