"""Floor 4: an OpenAI-compatible HTTP server over one client of a swarm, and a small chat page."""
