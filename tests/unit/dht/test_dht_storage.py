"""What a directory node holds for others is bounded, and what it holds is not taken away by what it refuses."""

from __future__ import annotations

from swarm.core.limits import MAX_RECORD_BYTES, MAX_RECORD_LIFETIME_S
from swarm.core.records import CLOCK_SKEW_S
from swarm.dht.storage import MAX_MODEL_BYTES, MAX_MODELS, BoundedStorage
from swarm.runtime.clock import SystemClock

RECORD = b"r" * MAX_RECORD_BYTES


def make() -> tuple[BoundedStorage, float]:
    """Storage, and a wall time a minute ahead."""
    clock = SystemClock()  # hivemind reads the machine's own
    return BoundedStorage(clock), clock.wall_s() + 60.0


def held(storage: BoundedStorage, key: str) -> dict[str, bytes]:
    entry = storage.get(key)
    return {} if entry is None else {subkey: item.value for subkey, item in entry.value.items()}


def test_a_model_full_of_strangers_takes_no_more_but_renews_and_keeps_its_own() -> None:
    storage, soon_s = make()
    assert storage.store_subkey("model", "first", RECORD, soon_s)
    taken = sum(storage.store_subkey("model", f"stranger {n}", RECORD, soon_s) for n in range(1000))
    assert 300 < taken < 999
    assert sum(map(len, held(storage, "model").values())) <= MAX_MODEL_BYTES
    assert not storage.store_subkey("model", "newcomer", RECORD, soon_s)
    assert storage.store_subkey("model", "first", b"renewed", soon_s + 1)
    storage.reserve("model", "own")
    assert storage.store("model", b"own", soon_s, subkey="own")
    assert held(storage, "model")["first"] == b"renewed"
    assert held(storage, "model")["own"] == b"own"


def test_small_records_are_counted_by_their_bytes() -> None:
    storage, soon_s = make()
    assert all(storage.store_subkey("model", f"server {n}", b"r" * 400, soon_s) for n in range(2000))


def test_keys_are_bounded_but_for_those_of_ones_own() -> None:
    storage, soon_s = make()
    taken = sum(storage.store_subkey(f"model {n}", "stranger", b"r", soon_s) for n in range(MAX_MODELS + 10))
    assert taken == MAX_MODELS
    storage.reserve("mine", "own")
    assert storage.store_subkey("mine", "neighbour", b"r", soon_s)
    assert storage.store_subkey("mine", "own", b"r", soon_s)


def test_a_replayed_older_record_neither_replaces_nor_shortens_the_newer() -> None:
    storage, soon_s = make()
    assert storage.store_subkey("model", "server", b"new", soon_s + 20)
    entries = storage.get("model").value
    before = dict(entries.key_to_heap), len(entries.expiration_heap)
    for _ in range(100):
        assert not storage.store_subkey("model", "server", b"old", soon_s)
    assert (dict(entries.key_to_heap), len(entries.expiration_heap)) == before
    assert held(storage, "model") == {"server": b"new"}


def test_nothing_lives_longer_than_a_record_may_and_plain_values_are_never_held() -> None:
    storage, _ = make()
    now_s = SystemClock().wall_s()
    assert not storage.store_subkey("model", "server", b"r", now_s + MAX_RECORD_LIFETIME_S + CLOCK_SKEW_S + 5)
    assert storage.store_subkey("model", "server", b"r", now_s + MAX_RECORD_LIFETIME_S)
    assert not storage.store("model", b"wipe", now_s + MAX_RECORD_LIFETIME_S + 1)
    assert not BoundedStorage(SystemClock(), max_models=0).store_subkey("model", "server", b"r", now_s + 60)
