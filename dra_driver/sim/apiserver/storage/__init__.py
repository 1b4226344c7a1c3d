"""Objects in memory and in a journal."""
