"""The demo: the embedded cluster with the examples, shown and checked."""
