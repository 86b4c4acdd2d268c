"""What messages are made of: bounded numbers, bytes and texts, each checked by msgspec while it decodes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from swarm.core.ids import SECRET_BYTES, SESSION_BYTES
from swarm.core.keys import SIGNATURE_BYTES
from swarm.core.limits import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_REASON_CHARS,
    MAX_STAGE_NUMBERS,
    MAX_STAGES,
    MAX_VOCABULARY,
)

DIGEST_BYTES = 32
"""Of SHA-256."""

Counter = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_VOCABULARY)]
Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
SessionBytes = Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
PeerText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)]
Stage = Annotated[int, msgspec.Meta(ge=0, lt=MAX_STAGE_NUMBERS)]
"""A name, not a place: the client numbers the stages of a session as it opens them, newcomers after a heal go on."""
Hops = Annotated[int, msgspec.Meta(ge=0, lt=MAX_STAGES)]
Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
MAX_SECONDS = 3600.0
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_SECONDS)]
"""Of a duration; a NaN does not fit either."""
Logprob = Annotated[float, msgspec.Meta(le=1e-3)]
"""At most 0 but for rounding, and so never NaN; minus infinity is a token that a filter removed."""
Codec = Literal["raw", "int8"]
Priority = Literal["interactive", "batch"]
Lane = Literal[0, 1]

DECODE_LANE: Lane = 0
PREFILL_LANE: Lane = 1
LANES: tuple[Lane, Lane] = (DECODE_LANE, PREFILL_LANE)


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The common form of messages: one array, its tag first."""
