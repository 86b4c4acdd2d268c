"""Where a model's files come from: the demo, a folder, or a hub. No torch: a thin client uses this too."""
