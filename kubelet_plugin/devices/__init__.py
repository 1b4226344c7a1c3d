"""The devices of the node: found, described, published."""
