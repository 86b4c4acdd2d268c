"""What a process needs around the pure parts: clocks, tasks, logging, the identity file, folders."""
