"""The search for devices on one node, and the scores that best fit compares."""
