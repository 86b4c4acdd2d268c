"""What a directory node holds for others is bounded, and what it holds is not taken away by what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

from swarm.core.limits import MAX_RECORD_BYTES
from swarm.core.records import CLOCK_SKEW_S
from swarm.dht.hivemind_import import DictionaryDHTValue
from swarm.dht.limits import MAX_ANSWERED_SUBKEYS, MAX_KEY_BYTES, MAX_SUBKEYS
from swarm.dht.storage import LEAST_CHARGE_BYTES, BoundedStorage, bound
from swarm.runtime.clock import SystemClock

RECORD = b"r" * MAX_RECORD_BYTES
LONGEST_S = 600.0


def make(*, max_keys: int = 64, max_bytes: int = 2**30) -> tuple[BoundedStorage, float]:
    """Storage, and a wall time a minute ahead."""
    clock = SystemClock()  # hivemind reads the machine's own
    storage = BoundedStorage(clock, lambda *_: LONGEST_S, max_keys=max_keys, max_bytes=max_bytes)
    return storage, clock.wall_s() + 60.0


def held(storage: BoundedStorage, key: str) -> dict[str, bytes]:
    entry = storage.get(key)
    return {} if entry is None else {subkey: item.value for subkey, item in entry.value.items()}


def test_a_key_full_of_strangers_takes_no_more_but_renews_and_keeps_its_own() -> None:
    storage, soon_s = make()
    assert storage.store_subkey("key", "first", RECORD, soon_s)
    taken = sum(storage.store_subkey("key", f"stranger {n}", RECORD, soon_s) for n in range(300))
    assert 100 < taken < MAX_SUBKEYS
    assert sum(map(len, held(storage, "key").values())) <= MAX_KEY_BYTES
    assert not storage.store_subkey("key", "newcomer", RECORD, soon_s)
    assert storage.store_subkey("key", "first", b"renewed", soon_s + 1)
    storage.reserve("key", "own")
    assert storage.store("key", b"own", soon_s, subkey="own")
    assert held(storage, "key")["first"] == b"renewed"
    assert held(storage, "key")["own"] == b"own"


def test_300_subkeys_are_256_and_none_of_those_grows_at_the_cost_of_another() -> None:
    storage, soon_s = make()
    taken = [n for n in range(300) if storage.store_subkey("key", f"server {n}", b"r" * 400, soon_s)]
    assert taken == list(range(MAX_SUBKEYS))
    assert not storage.store_subkey("key", "server 7", RECORD, soon_s + 1)  # it would take another's room
    usual = b"r" * (LEAST_CHARGE_BYTES - 100)
    assert all(storage.store_subkey("key", f"server {n}", usual, soon_s + 1) for n in taken)
    assert sum(map(len, held(storage, "key").values())) <= MAX_KEY_BYTES


def test_keys_are_bounded_but_for_those_of_ones_own() -> None:
    storage, soon_s = make(max_keys=64)
    assert sum(storage.store_subkey(f"key {n}", "stranger", b"r", soon_s) for n in range(70)) == 64
    storage.reserve("mine", "own")
    assert storage.store_subkey("mine", "neighbour", b"r", soon_s)
    assert storage.store_subkey("mine", "own", b"r", soon_s)


def test_all_keys_together_are_bounded_and_what_expires_makes_room() -> None:
    storage, soon_s = make(max_bytes=10 * LEAST_CHARGE_BYTES)
    assert sum(storage.store_subkey(f"key {n}", "stranger", b"r", soon_s) for n in range(20)) == 10
    assert all(storage.store_subkey(f"key {n}", "stranger", b"s", soon_s + 1) for n in range(10))
    storage.reserve("mine", "own")
    assert storage.store("mine", b"r", soon_s, subkey="own")

    class Later(SystemClock):
        def monotonic_s(self) -> float:
            return super().monotonic_s() + 10.0

    storage._clock = Later()
    for n in range(10):
        del storage[f"key {n}"]
    assert storage.store_subkey("another", "stranger", b"r", soon_s)


def test_a_replayed_older_record_neither_replaces_nor_shortens_the_newer() -> None:
    storage, soon_s = make()
    assert storage.store_subkey("key", "server", b"new", soon_s + 20)
    entries = storage.get("key").value
    before = dict(entries.key_to_heap), len(entries.expiration_heap)
    for _ in range(100):
        assert not storage.store_subkey("key", "server", b"old", soon_s)
    entries = storage.get("key").value
    assert (dict(entries.key_to_heap), len(entries.expiration_heap)) == before
    assert held(storage, "key") == {"server": b"new"}


def test_a_lookup_cannot_grow_what_is_held() -> None:
    """hivemind merges the answers of others into the dictionary it got from its own node."""
    storage, soon_s = make()
    assert storage.store_subkey("key", "server", b"r", soon_s)
    found = storage.get("key").value
    for n in range(1000):
        found.store(f"stranger {n}", b"r", soon_s)
    assert held(storage, "key") == {"server": b"r"}


def test_renewing_without_end_takes_no_room() -> None:
    storage, soon_s = make()
    for n in range(2000):
        assert storage.store_subkey("key", "server", b"r", soon_s + n / 1000)
    assert len(storage.expiration_heap) < 100
    assert len(storage.get("key").value.expiration_heap) < 100
    assert storage.get("key").expiration_time == soon_s + 1.999


def test_nothing_lives_longer_than_its_kind_may_and_plain_values_are_never_held() -> None:
    storage, _ = make()
    now_s = SystemClock().wall_s()
    assert not storage.store_subkey("key", "server", b"r", now_s + LONGEST_S + CLOCK_SKEW_S + 5)
    assert not storage.store_subkey("key", "server", b"r", now_s - 1)
    assert storage.store_subkey("key", "server", b"r", now_s + LONGEST_S)
    assert not storage.store("key", b"wipe", now_s + LONGEST_S + 1)
    assert not make(max_keys=0)[0].store_subkey("key", "server", b"r", now_s + 60)


def test_what_was_stored_while_the_clock_was_ahead_bars_nothing_once_it_is_right() -> None:
    clock = SystemClock()
    ahead = SimpleNamespace(s=3600.0, wall_s=lambda: clock.wall_s() + ahead.s, monotonic_s=clock.monotonic_s)
    storage = BoundedStorage(ahead, lambda *_: LONGEST_S, max_bytes=2**30)
    assert storage.store_subkey("key", "server", b"far", ahead.wall_s() + 60.0)
    ahead.s = 0.0
    assert not storage.store_subkey("key", "server", b"late", clock.wall_s() - 1.0)
    assert storage.store_subkey("key", "server", b"right", clock.wall_s() + 60.0)
    assert held(storage, "key") == {"server": b"right"}
    assert not storage.store_subkey("key", "server", b"older", clock.wall_s() + 50.0)


def test_an_answer_larger_than_any_node_holds_is_refused_before_a_signature_is_checked() -> None:
    judged: list[object] = []

    def judge(_: bytes, dictionary: object) -> bool:
        judged.append(dictionary)
        return True

    protocol = SimpleNamespace(_validate_dictionary=judge)
    storage = bound(protocol, SystemClock(), lambda *_: LONGEST_S, max_bytes=2**20)
    assert protocol.storage is storage
    crowd = DictionaryDHTValue()
    for n in range(MAX_ANSWERED_SUBKEYS):
        crowd.store(f"server {n}", b"r", SystemClock().wall_s() + 60)
    assert protocol._validate_dictionary(b"key", crowd)
    crowd.store("one more", b"r", SystemClock().wall_s() + 60)
    assert not protocol._validate_dictionary(b"key", crowd)
    assert judged == [crowd]
