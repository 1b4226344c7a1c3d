"""What all PCI devices have in common: addresses, products, drivers that hold them."""
