"""Byte streams between peers: the protocol, an in-memory twin that can misbehave, and the libp2p adapter."""
