"""What an expression may cost, estimated and counted."""
