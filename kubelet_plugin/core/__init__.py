"""What the other rooms share: durable files, signals between tasks, notices."""
