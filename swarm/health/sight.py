"""What a page knows of one model at one moment, before it is made into what people see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.wire.status import StatusReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What this page's own tries to reach a server came to. Times that end in ``_at`` are wall time.

    ``reached`` is what was made of the last tries, since ``since_at`` (one lost try changes nothing), None before the
    first has come to an end. ``heard_at`` is when it last answered anything, ``note`` why there is no newer ``report``.
    ``waiting``: no try has come to an end for so long that the directory's word alone does not count any more.
    ``network`` is where it was reached (``networks.network_of``).
    """

    reached: bool | None = None
    since_at: float = 0.0
    heard_at: float | None = None
    rtt_s: float | None = None
    report: StatusReport | None = None
    report_at: float = 0.0
    note: str = ""
    waiting: bool = False
    network: str = ""


NOTHING_HEARD = Heard()


@dataclass(frozen=True, slots=True)
class Seen:
    """A server as the directory has it, or had it last: ``gone`` if its record is there no longer, and it did not say
    goodbye. ``seen_at`` is when a new record of it came last."""

    listing: Listing
    seen_at: float
    gone: bool = False

    @property
    def peer(self) -> PeerId:
        return self.listing.peer


@dataclass(frozen=True, slots=True)
class Repute:
    """What this machine knows of a server's honesty. ``trusted``: a verifier here audits it by weights of its own."""

    audited: int = 0
    strikes: int = 0
    ejected: bool = False
    accused: bool = False
    trusted: bool = False
    proofs: tuple[str, ...] = ()


STRANGER = Repute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One model at the wall time ``at``, and its ``servers``, which all announce so many ``layers``.

    ``as_of`` is the moment by which the directory's records are judged, older than ``at`` while it does not answer.
    The model was first heard of at ``since_at``. Of its servers ``most_servers`` are shown; all count.

    ``contacts`` are addresses to join by, for a volunteer's command; ``moves`` so many moves were seen within an hour;
    ``chains`` are the servers that were taken for stages of a chain the last time, by its label.
    """

    model: str
    layers: int
    at: float
    as_of: float
    servers: Sequence[Seen]
    since_at: float = 0.0
    most_servers: int = 2000
    heard: Mapping[PeerId, Heard] = field(default_factory=dict)
    repute: Mapping[PeerId, Repute] = field(default_factory=dict)
    hidden_size: int | None = None
    contacts: Sequence[str] = ()
    moves: int = 0
    chains: Mapping[str, frozenset[str]] = field(default_factory=dict)
