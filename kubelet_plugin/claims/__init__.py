"""Prepared claims: made, remembered, recovered and compared with the API server."""
