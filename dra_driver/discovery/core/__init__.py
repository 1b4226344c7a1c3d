"""What backends share: the schema, sysfs and PCI, problems, the last good result."""
