"""What commands print for people: reports of lines and tables, on a terminal or into a pipe."""
