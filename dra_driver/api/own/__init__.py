"""Kinds of the group dra-driver.dev, and the parameters of its driver."""
