"""Reads the directory, asks every server how it is, and keeps what it made of both."""
