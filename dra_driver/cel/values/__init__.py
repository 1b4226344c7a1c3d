"""Values, types, times and patterns as evaluation and checking see them."""
