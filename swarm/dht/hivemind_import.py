"""hivemind's DHT, imported quietly (its import warns, takes over a logger and renames a level: undone here)."""

from __future__ import annotations

import logging
import warnings

_level = logging.getLogger("hivemind").level

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from hivemind.dht import DHTNode
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase
    from hivemind.p2p import PeerID
    from hivemind.proto import dht_pb2
    from hivemind.utils import MSGPackSerializer
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr
    from hivemind.utils.timed_storage import TimedStorage

use_hivemind_log_handler("nowhere")
logging.addLevelName(logging.WARNING, "WARNING")
logging.getLogger("hivemind").setLevel(_level or logging.CRITICAL)

__all__ = [
    "DHTID",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "PeerID",
    "RecordValidatorBase",
    "TimedStorage",
    "dht_pb2",
]
