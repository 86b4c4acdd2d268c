"""The version of this package. It stands here, at the bottom, so that every room can say it."""

from __future__ import annotations

VERSION = "0.1.0"
"""Of the software; the wire protocol has a version of its own."""
