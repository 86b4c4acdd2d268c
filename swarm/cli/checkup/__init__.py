"""What `swarm doctor` looks at."""
