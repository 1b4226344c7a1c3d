"""What may serve a request: selectors, capacity, taints and constraints, before any choice."""
