"""Which nodes a pod could run on, and which of them to leave alone for a while."""
