"""A model on a Hugging Face hub: which commit, its small files, its list of files. ``HF_ENDPOINT``, ``HF_TOKEN``,
``HF_HOME`` and ``HF_HUB_OFFLINE`` count as everywhere."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from swarm.core.errors import DownloadError, ModelError
from swarm.models.download import disk_errors, put
from swarm.models.files import ModelFiles, text_config
from swarm.models.folder import INDEX, MAX_JSON_BYTES, chat_template, no_safetensors, parse_index, read_json
from swarm.models.hub_client import hub_errors, quiet_bar
from swarm.models.hub_tensors import HubFile, HubTensors, Repo

_REPO = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
SMALL_FILES = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


def is_repo_id(text: str) -> bool:
    """True if ``text`` has the form of a hub's model id: ``org/name``, or the old ``name``."""
    return _REPO.fullmatch(text) is not None and ".." not in text


def open_hub(repo_id: str, revision: str | None, cache: Path) -> ModelFiles:
    """Open ``repo_id`` at ``revision`` (a branch, tag or commit; default ``main``), fetching small files only.

    The commit it points to now becomes the model's revision, so two peers speak of one model only at one commit.
    Without a network the listing seen last is used. Raises ``ModelError`` if the hub has no such model or revision, it
    is not for this user, or it is no causal language model in safetensors; ``DownloadError`` if the hub cannot be
    reached.
    """
    listing = _listing(repo_id, revision or "main", cache)
    repo = listing.repo
    config = text_config(read_json(_needed(listing, "config.json")), repo_id)
    tokenizer = _needed(listing, "tokenizer.json")
    index_path = _small(listing, INDEX)
    if index_path is None and "model.safetensors" not in listing.files:
        raise no_safetensors(repo_id, listing.files)
    index = None if index_path is None else parse_index(read_json(index_path), repo_id)
    paths = {name: _small(listing, name) for name in SMALL_FILES}
    template = chat_template(paths["chat_template.jinja"], paths["tokenizer_config.json"])
    return ModelFiles(
        name=repo_id,
        revision=repo.commit,
        config=config,
        generation=read_json(paths["generation_config.json"]) or {},
        tokenizer_path=tokenizer,
        tokenizer_config_path=paths["tokenizer_config.json"],
        chat_template=template or chat_template(None, paths["chat_template.json"]),
        source=HubTensors(repo, listing.files, index),
    )


@dataclass(frozen=True, slots=True)
class _Listing:
    repo: Repo
    files: dict[str, HubFile]


def _listing(repo_id: str, revision: str, cache: Path) -> _Listing:
    """Commit and files, from the hub, or as seen last if it cannot be reached (at once for a commit seen before)."""
    folder = cache / "hub" / repo_id.replace("/", "--")
    seen = folder / "refs" / f"{quote(revision, safe='')}.json"
    known = read_json(seen)
    if not (known and _COMMIT.fullmatch(revision)):
        try:
            known = _ask_hub(repo_id, revision)
        except DownloadError:
            if not known:
                raise
        else:
            _remember(seen, known)
    endpoint = os.environ.get("HF_ENDPOINT")
    repo = Repo(repo_id, known["commit"], folder / known["commit"], endpoint)
    return _Listing(repo, {name: HubFile(int(size), sha256) for name, (size, sha256) in known["files"].items()})


def _remember(path: Path, listing: dict[str, Any]) -> None:
    with disk_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, json.dumps(listing).encode())


def _ask_hub(repo_id: str, revision: str) -> dict[str, Any]:
    from huggingface_hub import HfApi

    with hub_errors(repo_id, revision):
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(repo_id, revision=revision, files_metadata=True)
    if not info.sha or not _COMMIT.fullmatch(info.sha):
        raise DownloadError(f"the hub names no commit for {repo_id}@{revision}")
    files = {
        item.rfilename: (item.size or 0, item.lfs.sha256 if item.lfs is not None else None)
        for item in info.siblings or []
    }
    return {"commit": info.sha, "files": files}


def _needed(listing: _Listing, name: str) -> Path:
    path = _small(listing, name)
    if path is None:
        raise ModelError(
            f"{listing.repo.name} has no {name}", hint="give the id of a transformers model with a fast tokenizer"
        )
    return path


def _small(listing: _Listing, name: str) -> Path | None:
    """A small file's path in the hub client's own cache; None if the model has none."""
    from huggingface_hub import hf_hub_download

    repo = listing.repo
    if name not in listing.files:
        return None
    if listing.files[name].size > MAX_JSON_BYTES:
        raise ModelError(f"{name} of {repo.name} is over {MAX_JSON_BYTES} bytes")
    with hub_errors(repo.name, repo.commit):
        return Path(
            hf_hub_download(repo.name, name, revision=repo.commit, endpoint=repo.endpoint, tqdm_class=quiet_bar())
        )
