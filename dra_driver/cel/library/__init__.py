"""Implementations of the functions: CEL's and Kubernetes'."""
