"""What a container gets of NVIDIA's driver where no document of NVIDIA's toolkit says it."""
