"""Type checking: the functions of the environment, and whether a tree uses them correctly."""
