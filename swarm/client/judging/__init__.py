"""What a client makes of servers: its own sessions, and what others say, checked."""
