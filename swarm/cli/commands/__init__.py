"""One module a command; only the chosen one is imported."""
