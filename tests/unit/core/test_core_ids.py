"""Model ids and session keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, ProtocolViolation
from swarm.core.ids import SESSION_BYTES, ModelId, PeerId, SessionKey

part = st.text(alphabet=st.characters(exclude_characters="@#", exclude_categories=["Z", "C"]), min_size=1, max_size=60)
fingerprint = st.text(alphabet="0123456789abcdef", min_size=16, max_size=16)


@given(part, part, fingerprint)
def test_a_model_id_survives_its_text_form(name: str, revision: str, digest: str) -> None:
    model = ModelId(name, revision, digest)
    assert ModelId.parse(str(model)) == model


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name@main",
        "name@main#123",
        "name@main#0123456789ABCDEF",
        "name@main#0123456789abcdef0",
        "name@main#0123456789abcdef\n",
        "@main#0123456789abcdef",
        "name@#0123456789abcdef",
        "na me@main#0123456789abcdef",
        "na@me@main#0123456789abcdef",
        "name@main#x#0123456789abcdef",
        "n" * 201 + "@main#0123456789abcdef",
        "name@" + "m" * 101 + "#0123456789abcdef",
    ],
)
def test_anything_else_is_no_model_id(text: str) -> None:
    with pytest.raises(ConfigError, match="not a model id"):
        ModelId.parse(text)


@given(part, part, part, st.sampled_from("@#"), fingerprint)
def test_no_part_may_smuggle_in_another(name: str, revision: str, more: str, mark: str, digest: str) -> None:
    for parts in ((f"{name}{mark}{more}", revision, digest), (name, f"{revision}{mark}{more}", digest)):
        with pytest.raises(ConfigError, match="not a model id"):
            ModelId(*parts)


def test_the_session_key_holds_the_authenticated_client() -> None:
    session = bytes(range(SESSION_BYTES))
    one, other = (SessionKey(PeerId(peer), session, 0) for peer in ("alice", "mallory"))
    assert one != other
    assert len({one, other, SessionKey(PeerId("alice"), session, 0)}) == 2
    assert str(SessionKey(PeerId("alice"), session, 3)) == "00010203/3"


@pytest.mark.parametrize(("session", "stage"), [(b"short", 0), (b"x" * 17, 0), (b"x" * 16, -1)])
def test_a_malformed_session_key_is_the_peers_fault(session: bytes, stage: int) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        SessionKey(PeerId("alice"), session, stage)
    assert caught.value.peer == "alice"
