"""Which devices may serve a request, before any choice: selectors, capacity, taints and constraints."""
