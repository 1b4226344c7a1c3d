"""Between a question and its answer: the changes sent, those since, which answers may be put into effect."""
