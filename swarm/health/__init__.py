"""The health page: what a swarm is like right now, for anybody."""
