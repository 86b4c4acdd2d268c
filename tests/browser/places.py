"""Where these tests leave what people look at."""

from __future__ import annotations

from pathlib import Path

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
