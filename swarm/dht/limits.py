"""How much may stand under one key. All nodes must agree on it. The unit is in each name."""

from __future__ import annotations

MAX_SUBKEYS = 256
MAX_ANSWERED_SUBKEYS = MAX_SUBKEYS + 16
"""In another node's answer: a node always has room for its own."""
MAX_KEY_BYTES = 512 * 1024
"""All records of a key travel in one answer, of a few keys at most; libp2p's daemon takes 2 MiB."""
KEYS_PER_ANSWER = 3
