"""Creating, changing and deleting objects."""
