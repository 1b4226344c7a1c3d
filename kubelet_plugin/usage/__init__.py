"""What says whether claims are still in use on the node: the kubelet's list of pods, and processes."""
