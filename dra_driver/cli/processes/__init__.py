"""Commands that run until they are stopped: the controller, the node agent, the embedded cluster."""
