"""The kinds of objects: their fields, formats and versions."""
