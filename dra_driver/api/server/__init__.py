"""What is said to and by the API server beside objects: reviews of writes and rights, lists and watches."""
