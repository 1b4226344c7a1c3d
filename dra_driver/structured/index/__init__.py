"""Classes of equal nodes and what is known about each: the fleet without a look at every node."""
