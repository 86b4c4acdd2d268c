"""Floor 0: the words every other room speaks. Pure: no clock, socket, file, torch or random generator."""
