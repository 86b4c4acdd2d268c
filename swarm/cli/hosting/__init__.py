"""A server process, composed: its layers, its way to READY, its limits and rests, what it has done."""
