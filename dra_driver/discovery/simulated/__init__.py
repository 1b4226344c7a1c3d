"""Machines that do not exist: as devices, and as trees of sysfs, procfs and devfs."""
