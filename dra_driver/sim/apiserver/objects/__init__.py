"""Kinds, fields and texts: objects as data."""
