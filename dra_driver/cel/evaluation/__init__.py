"""Compilation of a checked tree to closures."""
