"""What could be changed: holders that go or move, nodes that come, parts of a request that are left out."""
