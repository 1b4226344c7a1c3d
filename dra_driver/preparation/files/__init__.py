"""What stands in the files of a node agent: checkpoint, CDI document, metadata, and their names."""
