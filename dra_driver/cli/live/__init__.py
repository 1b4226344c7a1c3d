"""What commands read of a live cluster: once by lists, or followed by informers."""
