"""Measurements as ratios taken side by side in one run. ``python -m benchmarks NAME [--json]``."""
