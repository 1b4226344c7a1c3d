"""Health of devices: noticed, kept, reported."""
