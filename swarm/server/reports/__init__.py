"""What a server tells: the directory, and whoever asks."""
