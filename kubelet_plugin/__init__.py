"""The node agent: inventory, registration, prepare and unprepare."""
