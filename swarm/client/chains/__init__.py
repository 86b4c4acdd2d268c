"""One session's chain of servers: its streams, who is lost from it, and one attempt to make it whole."""
