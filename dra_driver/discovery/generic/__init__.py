"""Devices that a file describes."""
