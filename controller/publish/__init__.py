"""From DeviceInventories to ResourceSlices, and whose a pool is."""
