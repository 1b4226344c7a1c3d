"""The allocator on files and on a stream, for the commands that use it."""
