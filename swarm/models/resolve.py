"""``--model``: the demo, a folder, or a Hugging Face id."""

from __future__ import annotations

import os
from pathlib import Path

from swarm.core.errors import ConfigError, ModelError
from swarm.models.demo import prepare_demo
from swarm.models.files import ModelFiles
from swarm.models.folder import open_folder
from swarm.models.hub import is_repo_id, open_hub
from swarm.models.progress import Progress, silent

DEMO = "demo"


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/swarm/models``; the XDG default is ``~/.cache``, and a relative value counts as unset.

    Raises ``ConfigError`` for a user without a home, as in many containers.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (root if root.is_absolute() else Path.home() / ".cache") / "swarm" / "models"
    except RuntimeError as error:
        raise ConfigError("this user has no home folder", hint="set HOME, or XDG_CACHE_HOME") from error


def _expanded(folder: str) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise ModelError(f"no model folder {folder!r}: no such home", hint="write the whole path") from error


def resolve(
    spec: str, *, revision: str | None = None, cache: Path | None = None, progress: Progress = silent
) -> ModelFiles:
    """Open a model by what the user called it, fetching only small files (the demo is prepared whole).

    ``spec`` is ``demo``, a local folder, or a Hugging Face id ``org/name``, optionally ``org/name@revision``.
    ``cache`` is where downloads go (default ``default_cache()``). Blocks; call it off the event loop. Raises
    ``ModelError`` for a model that is missing, incomplete or no causal language model, ``DownloadError`` when the
    network fails.
    """
    cache = cache or default_cache()
    if spec == DEMO:
        return open_folder(prepare_demo(cache, progress))
    if Path(spec).is_dir() or spec.startswith((".", "/", "~")):
        return open_folder(_expanded(spec))
    name, at, inline = spec.partition("@")
    if at and revision not in (None, inline):
        raise ConfigError(f"the model says revision {inline!r} and the option {revision!r}", hint="give one of them")
    if not is_repo_id(name) or (at and not inline):
        raise ModelError(
            f"no model folder {spec!r}, and it is no Hugging Face id", hint="give a folder, an id org/name, or demo"
        )
    return open_hub(name, inline or revision, cache)
