"""Hub models over real sockets: what is fetched, resumed, refused and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swarm.core.errors import ConfigError, DownloadError, ModelError
from swarm.models import ModelFiles, resolve, silent
from swarm.models.download import CHECKING, CHUNK_BYTES
from swarm.models.folder import open_folder

LAYER = ["model.layers.1.down.weight", "model.layers.1.up.weight"]


def open_it(kit: Any, **options: Any) -> ModelFiles:
    return resolve(options.pop("spec", kit.repo), cache=kit.cache, **options)


def check(kit: Any, files: ModelFiles, names: list[str]) -> None:
    files.fetch(names, silent)
    got = {name: bytes(data) for name, data, _, _ in files.read(names)}
    assert got == {name: kit.data[name] for name in names}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_opening_fetches_no_weights_and_agrees_with_the_folder(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(rows=4096)
    files = open_it(kit)
    local = open_folder(kit.hub.folder)
    assert files.fingerprint == local.fingerprint
    assert str(files.model_id) == f"{kit.repo}@{kit.commit}#{local.fingerprint}"
    assert files.eos_token_ids == (2, 5)
    assert files.chat_template == "{{ messages }}"
    assert files.tensor_names() == frozenset(kit.data)
    assert kit.hub.sent < 100_000 < (kit.hub.folder / "model.safetensors").stat().st_size / 10


def test_a_sharded_model_is_known_by_its_index_alone(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(shards=3)
    files = open_it(kit)
    assert files.fingerprint == open_folder(kit.hub.folder).fingerprint
    assert files.source.to_fetch_bytes() == sum(path.stat().st_size for path in kit.hub.folder.glob("*.safetensors"))
    assert kit.hub.cdn_requests == []


def test_a_few_tensors_come_by_byte_ranges(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    check(kit, files, LAYER)
    wanted = sum(len(kit.data[name]) for name in LAYER)
    assert wanted <= kit.hub.sent < wanted + 80_000
    assert all(ranges.startswith("bytes=") for ranges, _ in kit.hub.cdn_requests)
    before = kit.hub.sent
    check(kit, open_it(kit), LAYER)
    assert kit.hub.sent == before, "a restart fetched again what was there"


def test_half_a_shard_or_more_comes_whole_and_checked(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    names = sorted(kit.data)
    check(kit, files := open_it(kit), names)
    assert files.source.to_fetch_bytes() == 0
    whole = kit.cache / "hub" / "someone--tiny" / kit.commit / "model.safetensors"
    assert whole.read_bytes() == (kit.hub.folder / "model.safetensors").read_bytes()
    assert not list(whole.parent.glob("*.part"))


def test_only_the_shards_concerned_are_touched(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(shards=4)
    files = open_it(kit)
    assert files.source.index is not None
    shard = files.source.index[LAYER[0]]
    check(kit, files, [name for name, file in files.source.index.items() if file == shard])
    kept = {path.name for path in (kit.cache / "hub" / "someone--tiny" / kit.commit).iterdir()}
    assert {name for name in kept if name.endswith(".safetensors")} == {shard}


@pytest.mark.parametrize("whole", [True, False])
def test_a_cut_connection_resumes_where_it_was(hub_kit: Callable[..., Any], whole: bool) -> None:
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    files.tensors(LAYER)
    kit.hub.cut_after = [300_000, 200_000]
    kit.hub.sent = 0
    names = sorted(kit.data) if whole else LAYER
    check(kit, files, names)
    size = (kit.hub.folder / "model.safetensors").stat().st_size if whole else sum(len(kit.data[n]) for n in names)
    assert not kit.hub.cut_after
    assert kit.hub.sent == size, "bytes were fetched twice"


def test_a_server_that_is_busy_for_a_moment_is_asked_again(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    files = open_it(kit)
    kit.hub.status = [503, 429]
    check(kit, files, sorted(kit.data))


@pytest.mark.parametrize("whole", [True, False])
def test_a_download_given_up_goes_on_at_the_next_run(hub_kit: Callable[..., Any], whole: bool) -> None:
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    files.tensors(LAYER)
    names = sorted(kit.data) if whole else LAYER
    kept = 700_000
    kit.hub.cut_after = [kept] + [0] * 10
    with pytest.raises(DownloadError, match=r"model.safetensors.*it resumes"):
        files.fetch(names, silent)
    kit.hub.cut_after, kit.hub.sent = [], 0
    reports: list[tuple[int, int]] = []
    again = open_it(kit)
    again.fetch(names, lambda _, done, total: reports.append((done, total)))
    check(kit, again, names)
    size = (kit.hub.folder / "model.safetensors").stat().st_size if whole else sum(len(kit.data[n]) for n in names)
    # Whole shards resume at the byte, single tensors at the tensor.
    resumed = kept if whole else len(kit.data[LAYER[0]])
    assert kit.hub.sent == size - resumed
    assert reports[-1] == (size, size)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


@pytest.mark.parametrize("whole", [True, False])
def test_a_large_tensor_is_told_of_while_it_comes(hub_kit: Callable[..., Any], whole: bool) -> None:
    kit = hub_kit(rows=16384)
    names = sorted(kit.data) if whole else LAYER[:1]
    largest = max(len(kit.data[name]) for name in names)
    reports: list[int] = []
    open_it(kit).fetch(names, lambda _, done, total: reports.append(done))
    steps = [later - earlier for earlier, later in pairwise([0, *reports])]
    assert min(steps) >= 0
    assert max(steps) <= 2 * CHUNK_BYTES < largest


def test_a_large_part_of_an_earlier_run_is_checked_under_a_name_of_its_own(
    hub_kit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its speed, a disk's, is not taken for the network's."""
    monkeypatch.setattr("swarm.models.download.TOLD_BYTES", 1000)
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    files.tensors(LAYER)
    kit.hub.cut_after = [700_000] + [0] * 10
    with pytest.raises(DownloadError):
        files.fetch(sorted(kit.data), silent)
    kit.hub.cut_after = []
    told: dict[str, list[int]] = {}
    open_it(kit).fetch(sorted(kit.data), lambda label, done, _: told.setdefault(label, []).append(done))
    checked, fetched = told.values()
    assert next(iter(told)).endswith(CHECKING)
    assert checked[-1] == 700_000 < fetched[0]


def test_a_wrong_hash_names_the_file_and_keeps_nothing(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    files = open_it(kit)
    files.tensors(LAYER)
    kit.hub.corrupt = True
    with pytest.raises(DownloadError, match=r"model\.safetensors does not match its sha256"):
        files.fetch(sorted(kit.data), silent)
    folder = kit.cache / "hub" / "someone--tiny" / kit.commit
    assert {path.suffix for path in folder.iterdir()} <= {".header", ".lock"}
    kit.hub.corrupt = False
    check(kit, files, sorted(kit.data))


def test_a_tensor_damaged_on_disk_is_found_and_fetched_anew(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    check(kit, files, LAYER)
    sparse = kit.cache / "hub" / "someone--tiny" / kit.commit / "model.safetensors.sparse"
    with sparse.open("r+b") as stream:
        stream.seek(files.tensors(LAYER)[LAYER[1]].offset + 5)
        stream.write(b"\xff\xff")
    with pytest.raises(DownloadError, match=r"layers\.1\.up.*damaged"):
        list(files.read(LAYER))
    check(kit, files, LAYER)


def test_a_journal_cut_by_a_crash_costs_one_tensor(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(rows=2048)
    files = open_it(kit)
    check(kit, files, LAYER)
    journal = kit.cache / "hub" / "someone--tiny" / kit.commit / "model.safetensors.journal"
    journal.write_bytes(journal.read_bytes()[:-20])
    kit.hub.sent = 0
    check(kit, files, LAYER)
    assert kit.hub.sent == len(kit.data[LAYER[1]])
    check(kit, open_it(kit), LAYER)
    assert kit.hub.sent == len(kit.data[LAYER[1]])


def test_the_token_goes_to_the_hub_and_never_to_another_host(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    check(kit, open_it(kit), LAYER)
    assert kit.hub.hub_authorizations == {"Bearer hf_secret"}
    assert {authorization for _, authorization in kit.hub.cdn_requests} == {None}


def test_a_server_without_ranges_is_an_error_that_says_what_to_do(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    kit.hub.ignore_ranges = True
    with pytest.raises(DownloadError, match=r"ignores byte ranges.*give its folder"):
        open_it(kit).tensor_names()


def test_errors_say_what_is_wrong_and_what_to_do(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    with pytest.raises(ModelError, match=r"no folder and no model on the hub called someone/absent.*HF_TOKEN"):
        open_it(kit, spec="someone/absent")
    with pytest.raises(ModelError, match=r"no revision v9.*a branch, a tag or a commit"):
        open_it(kit, spec="someone/tiny@v9")
    with pytest.raises(ModelError, match=r"no Hugging Face id"):
        open_it(kit, spec="some one/tiny")
    with pytest.raises(ConfigError, match=r"v1.*v2"):
        open_it(kit, spec="someone/tiny@v1", revision="v2")
    kit.hub.gated = True
    with pytest.raises(ModelError, match=r"gated.*ask for access"):
        open_it(kit)


def test_a_revision_is_pinned_to_its_commit(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    ids = {open_it(kit).model_id, open_it(kit, revision="v1").model_id, open_it(kit, spec=f"{kit.repo}@v1").model_id}
    assert {model.revision for model in ids} == {kit.commit}
    assert len(ids) == 1


def test_what_was_fetched_works_without_the_hub(hub_kit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kit = hub_kit()
    check(kit, open_it(kit), LAYER)
    fingerprint = open_it(kit).fingerprint
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    files = open_it(kit)
    assert files.fingerprint == fingerprint
    check(kit, files, LAYER)
    with pytest.raises(DownloadError, match=r"cannot reach the hub for someone/other"):
        open_it(kit, spec="someone/other")
    with pytest.raises(DownloadError, match=r"cannot reach the hub for demmo") as bare:
        open_it(kit, spec="demmo")
    assert "or is demo meant" in bare.value.hint


def test_only_bin_weights_are_refused_with_the_way_out(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit()
    (kit.hub.folder / "model.safetensors").rename(kit.hub.folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pytorch_model\.bin.*save_pretrained"):
        open_it(kit)


def test_an_index_that_points_out_of_the_folder_is_refused(hub_kit: Callable[..., Any]) -> None:
    kit = hub_kit(shards=2)
    index = kit.hub.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../../secrets.safetensors"}}))
    with pytest.raises(ModelError, match=r"no safetensors file beside it"):
        open_it(kit)


def test_a_shard_the_hub_client_already_has_is_used(hub_kit: Callable[..., Any], tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    kit = hub_kit()
    hf_hub_download(kit.repo, "model.safetensors", revision=kit.commit, endpoint=kit.hub.endpoint)
    kit.hub.sent = 0
    check(kit, open_it(kit), sorted(kit.data))
    assert kit.hub.sent == 0
