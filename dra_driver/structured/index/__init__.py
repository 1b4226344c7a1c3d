"""Classes of equal nodes with what is known about each, so that a question does not examine every node."""
