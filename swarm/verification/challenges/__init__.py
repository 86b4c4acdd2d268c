"""What is checked, so that nobody can tell beforehand: drawn windows, and requests that look like traffic."""
