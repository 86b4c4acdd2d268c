"""What the health page's unit tests share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: sights lies beside the tests
