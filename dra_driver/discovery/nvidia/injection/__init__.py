"""What a container gets of NVIDIA's driver: from the toolkit's document, else as the files are found."""
