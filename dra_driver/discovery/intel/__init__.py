"""Intel GPUs: i915 and xe in sysfs."""
