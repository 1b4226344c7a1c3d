"""The process that decides: the messages to and from it (``wire``), what it does, and how it is run."""
