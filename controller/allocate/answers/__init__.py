"""Between a question and its answer: what was told, what has changed since, what may be put into effect."""
