"""AMD GPUs: amdgpu and KFD in sysfs."""
