"""What the functions do: those of CEL, and those of Kubernetes."""
