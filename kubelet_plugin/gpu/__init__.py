"""What is changed on hardware for a claim, and undone."""
