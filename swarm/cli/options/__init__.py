"""Options, their other sources (files, variables), and mistakes that can be told at once."""
