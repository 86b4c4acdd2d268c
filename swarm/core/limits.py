"""Bounds on everything a stranger can make grow. The unit is in each name."""

from __future__ import annotations

PROTOCOL_MAJOR = 1
"""Peers of another major version are neither dialled nor listened to."""

MAX_HEADER_BYTES = 32 * 1024
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_RECORD_BYTES = 4 * 1024
MAX_RECORD_LIFETIME_S = 600.0
MAX_LAYERS = 4096
MAX_SHARD_DEPTH = 16
MAX_STAGES = 256
MAX_STAGE_NUMBERS = 65536
"""How many stages a session may open in its life, those of healed chains counted."""
MAX_STEP_ROWS = 512
"""Also the most a server computes at one go, so that no step keeps other sessions waiting longer than that."""
MAX_SAMPLED_ROWS = 64
"""Rows of one step a tail samples at most: one for decoding, a draft's length for speculation."""
MAX_CONTEXT_TOKENS = 4 * 1024 * 1024
MAX_VOCABULARY = 2 * 1024 * 1024
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_REASON_CHARS = 400
MAX_ADDRESSES = 16
MAX_ADDRESS_CHARS = 200
MAX_NAME_CHARS = 64
MAX_PENDING_STEPS = 64
"""Steps of one session a server holds that are not computed yet."""
MAX_PENDING_STEP_BYTES = 4 * 1024 * 1024
"""Of steps that wait for an earlier one. Only the two lanes of a session overtake each other, by a few rows."""
MAX_RECEIPT_BYTES = 1024
"""Of one receipt's canonical form."""
COMPACT_RECEIPT_BYTES = 177
"""Of a receipt on a control stream, whose ends know the rest of it."""
MAX_PROOF_BYTES = 64 * 1024 * 1024
"""Of one proof's file."""
MAX_EQUIVOCATION_PROOF_BYTES = 4 * 1024
MAX_TREE_LEAVES = 4096
"""Of one Merkle tree. A receipt's trees have 32."""
