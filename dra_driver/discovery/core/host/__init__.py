"""Files of the host that describe hardware: sysfs, hwmon, device nodes."""
