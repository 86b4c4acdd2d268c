"""Floor 1: which servers serve a session. Pure functions of the directory's view."""
