"""What ``dra-driver plan`` is asked about, the cluster that it asks, and how answers are shown."""
