"""What is wrong with a call of ``SwarmModel.connect`` whatever the network says."""

from __future__ import annotations

from typing import Any

import pytest

from swarm import SwarmModel
from swarm.core.errors import ConfigError, MisuseError, ModelError

PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"initial_peers": []}, "no initial peers"),
        ({"initial_peers": PEER}, "one string"),
        ({"initial_peers": [PEER], "head": "both"}, "head is 'both' .choose auto or local or remote"),
        ({"initial_peers": [PEER], "compression": "zip"}, "compression is 'zip' .choose none or int8"),
        ({"initial_peers": [PEER], "numerics": "mixed"}, "numerics is 'mixed' .choose same or any"),
        ({"initial_peers": [PEER], "audit_mb": -1.0}, "audit_mb is -1.0 .give megabytes, 0 or more"),
    ],
)
def test_a_wrong_choice_is_named_with_what_would_do(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SwarmModel.connect("demo", **options)


def test_an_unknown_option_and_a_missing_model_are_said() -> None:
    with pytest.raises(MisuseError, match="unexpected keyword argument 'heads'"):
        SwarmModel.connect("demo", initial_peers=[PEER], heads="local")
    with pytest.raises(ModelError, match="/no/such/folder"):
        SwarmModel.connect("/no/such/folder", initial_peers=[PEER])
