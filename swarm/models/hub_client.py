"""The hub's client library seen from here: its errors as ours, its bars silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from swarm.core.errors import DownloadError, ModelError


@contextmanager
def hub_errors(repo_id: str, revision: str) -> Iterator[None]:
    """Turn what the hub's client raises into ``ModelError`` (no such thing, or not for you) or ``DownloadError``."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repo_id} is gated: its owner gives access on request",
            hint="ask for access on the model's page, then set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"there is no folder and no model on the hub called {repo_id}",
            hint="check the name; for a private model set HF_TOKEN",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repo_id} has no revision {revision}", hint="give a branch, a tag or a commit") from error
    except errors.EntryNotFoundError as error:
        raise ModelError(f"a file of {repo_id}@{revision} is missing: {error}") from error
    except errors.HFValidationError as error:
        raise ModelError(f"{repo_id} is no model id: {error}", hint="write it as org/name") from error
    except _unreachable() as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hint = "check the network" + ("" if "/" in repo_id else "; or is demo meant, or a folder like ./NAME?")
        raise DownloadError(f"cannot reach the hub for {repo_id}: {reason}", hint=hint) from error


def _unreachable() -> tuple[type[Exception], ...]:
    """What the client raises when it gets no answer; the base error depends on the HTTP library it is built on."""
    from huggingface_hub import errors

    bases = [base for base in errors.HfHubHTTPError.__mro__ if base.__module__.partition(".")[0].startswith("httpx")]
    return (OSError, errors.OfflineModeIsEnabled, *(base for base in bases if issubclass(base, Exception)))


def quiet_bar() -> type[Any]:
    """A progress bar class for small files that draws nothing."""
    base: type[Any] = import_module("tqdm").tqdm

    def start(self: Any, *args: Any, **options: Any) -> None:
        options.pop("name", None)  # the hub's own bars have names
        base.__init__(self, *args, **(options | {"disable": True}))

    return type("QuietBar", (base,), {"__init__": start})
