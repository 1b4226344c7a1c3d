"""What holds devices of nodes, and what it costs to have these: the fewest holders that have to go."""
