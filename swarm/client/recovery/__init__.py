"""Who takes over when a chain breaks, and keeping it whole for as long as somebody can."""
