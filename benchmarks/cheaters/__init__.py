"""Servers that cheat, each in one way: ``python -m benchmarks.cheaters KIND [arguments of swarm.server]``."""
