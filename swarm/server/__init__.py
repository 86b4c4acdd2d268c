"""A volunteer's machine: holds a span, keeps the KV cache of its sessions, passes rows on to the next server."""
