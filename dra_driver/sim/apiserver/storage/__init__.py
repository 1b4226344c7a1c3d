"""The objects, in memory and in a journal."""
