"""Commands about the hardware and the files of the node that they run on."""
