"""Requests to the API server: address and credentials, answers, the connection, and the client on them."""
