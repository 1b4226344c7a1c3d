"""What the kubelet calls, and how it finds it."""
