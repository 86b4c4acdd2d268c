"""What changed between two states of a swarm, and a state made of an older one and that. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from swarm.health.state import MAX_EVENTS, LinkState, ModelPatch, ModelState, Patch, ServerState, SwarmState

T = TypeVar("T")
Key = Callable[[T], Hashable]


def difference(old: SwarmState, new: SwarmState) -> Patch:
    """The patch that makes ``new`` of ``old``: ``apply`` undoes it, but for the order of models, servers and links.

    Linear in servers and links. Exact as long as events are only ever added, their numbers rise, and a state holds the
    newest ``MAX_EVENTS``.
    """
    before = {model.model: model for model in old.models}
    names = {model.model for model in new.models}
    newest = old.events[-1].number if old.events else 0
    return Patch(
        at=new.at,
        base=old.revision,
        revision=new.revision,
        observer=new.observer,
        models=[
            _model(before.get(model.model), model) for model in new.models if not _same(before.get(model.model), model)
        ],
        removed=[model.model for model in old.models if model.model not in names],
        events=[event for event in new.events if event.number > newest],
    )


def apply(old: SwarmState, patch: Patch) -> SwarmState:
    """The state after ``patch``. Only for ``patch.base == old.revision``; that is for the caller to check."""
    before = {model.model: model for model in old.models}
    changed = {one.model.model: _whole(before.get(one.model.model), one) for one in patch.models}
    models = {name: model for name, model in (before | changed).items() if name not in patch.removed}
    return replace(
        old,
        at=patch.at,
        revision=patch.revision,
        observer=patch.observer,
        models=list(models.values()),
        events=[*old.events, *patch.events][-MAX_EVENTS:],
    )


def _model(old: ModelState | None, new: ModelState) -> ModelPatch:
    if old is None:
        return ModelPatch(model=new, gone=[])
    servers = _changed(old.servers, new.servers, _peer)
    links = _changed(old.links, new.links, _ends)
    return ModelPatch(
        model=replace(new, servers=servers, links=links),
        gone=[server.peer for server in _lost(old.servers, new.servers, _peer)],
        links_gone=[_ends(link) for link in _lost(old.links, new.links, _ends)],
    )


def _whole(old: ModelState | None, patch: ModelPatch) -> ModelState:
    if old is None:
        return patch.model
    servers = _merged(old.servers, patch.model.servers, _peer)
    links = _merged(old.links, patch.model.links, _ends)
    gone, links_gone = set(patch.gone), set(patch.links_gone)
    return replace(
        patch.model,
        servers=[server for server in servers if server.peer not in gone],
        links=[link for link in links if _ends(link) not in links_gone],
    )


def _peer(server: ServerState) -> str:
    return server.peer


def _ends(link: LinkState) -> tuple[str, str]:
    return link.source, link.target


def _changed(old: Sequence[T], new: Sequence[T], key: Key[T]) -> list[T]:
    before = {key(one): one for one in old}
    return [one for one in new if not _same(before.get(key(one)), one)]


def _same(before: object, after: object) -> bool:
    """What a watch found unchanged it carries on as the same object, which is quicker to see than equality."""
    return before is after or before == after


def _lost(old: Sequence[T], new: Sequence[T], key: Key[T]) -> list[T]:
    after = {key(one) for one in new}
    return [one for one in old if key(one) not in after]


def _merged(old: Sequence[T], changed: Sequence[T], key: Key[T]) -> list[T]:
    return list(({key(one): one for one in old} | {key(one): one for one in changed}).values())
