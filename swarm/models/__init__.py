"""Where a model's files come from: the demo, a folder, or a hub. No torch: a thin client uses this too."""

from swarm.models.demo import prepare_demo
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress, ProgressLine, silent
from swarm.models.resolve import default_cache, resolve

__all__ = ["ModelFiles", "Progress", "ProgressLine", "default_cache", "prepare_demo", "resolve", "silent"]
