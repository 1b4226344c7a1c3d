"""The cluster controller: publishes ResourceSlices and allocates ResourceClaims."""
