"""What ``dra-driver explain`` answers: about which claims, and why each of them fits or does not."""
