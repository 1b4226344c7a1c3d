"""Which functions there are, and whether a tree uses them rightly."""
