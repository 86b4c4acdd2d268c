"""Commands: argument parsing, exit codes, console output. Everything they do is a call into the rooms below."""
