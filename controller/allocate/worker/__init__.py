"""The process that decides: what it is told and asked (``wire``), what it does, and how it is run."""
