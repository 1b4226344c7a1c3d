"""A week of claims on simulated time: where they come from, how they are replayed, what is shown of it."""
