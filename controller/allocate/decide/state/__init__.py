"""What decisions know: the pods, claims, slices and pools that they were given, and whose they are."""
