"""A checked tree to closures."""
