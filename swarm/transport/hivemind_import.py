"""hivemind, imported quietly.

Importing it emits deprecation warnings from its own dependencies, puts a handler on the ``hivemind`` logger at level
INFO, and renames the level WARNING for the whole process. All three are undone here.
"""

from __future__ import annotations

import logging
import warnings

_level = logging.getLogger("hivemind").level

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from hivemind.p2p import P2P, PeerID
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr

use_hivemind_log_handler("nowhere")
logging.addLevelName(logging.WARNING, "WARNING")
# Unless somebody chose a level, silence: what goes wrong reaches the user as an error of ours.
logging.getLogger("hivemind").setLevel(_level or logging.CRITICAL)

__all__ = ["P2P", "Multiaddr", "PeerID", "p2pd_pb2"]
