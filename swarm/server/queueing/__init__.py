"""What runs next, and whether one more session fits."""
