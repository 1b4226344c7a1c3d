"""Costs of expressions: estimated before, and counted during an evaluation."""
