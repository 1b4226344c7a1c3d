"""Health of devices: noticed, remembered, told."""
