"""Every route but the stream, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from typing import Any

import aiohttp
import msgspec
import pytest
from health_desk import desk_of
from health_states import BEGAN_AT, MODEL, crowd, event, model, server, state
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from swarm.core.errors import NetworkError
from swarm.health.state import HistoryState, SwarmState
from swarm.health.web.app import page_files

HOSTILE = '</script><script>alert(1)</script>\r\ndata: {"at": 0}\n\nevent: state\u2028\u2029\x00"\\'
ORIGIN = "https://example.org"


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    body: dict[str, Any] = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "param", "code"}
    assert response.headers["Cache-Control"] == "no-store"
    error: dict[str, Any] = body["error"]
    return error


async def test_the_state_as_the_watch_has_it() -> None:
    shown = state(7, [model([server(1)])], events=[event(1)])
    async with desk_of(shown) as desk:
        answer = await desk.get("/api/v1/state")
        assert answer.content_type == "application/json"
        assert msgspec.json.decode(await answer.read(), type=SwarmState) == shown
        assert answer.headers["Cache-Control"] == "no-cache"


async def test_a_state_that_is_known_is_not_sent_again() -> None:
    async with desk_of() as desk:
        first = await desk.get("/api/v1/state")
        mark = first.headers["ETag"]
        for known in (mark, f'"other", {mark}', "*"):
            again = await desk.get("/api/v1/state", If_None_Match=known)
            assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", mark)
        assert (await desk.get("/api/v1/state", If_None_Match='W/"x-1"')).status == 200
        await desk.show(state(2))
        changed = await desk.get("/api/v1/state", If_None_Match=mark)
        assert (await changed.json())["revision"] == 2
        assert changed.headers["ETag"] != mark


async def test_marks_of_another_process_are_not_ours() -> None:
    async with desk_of(state(3)) as one, desk_of(state(3, [model()])) as other:
        mark = (await one.get("/api/v1/state")).headers["ETag"]
        assert (await other.get("/api/v1/state", If_None_Match=mark)).status == 200


async def test_what_is_large_is_packed_for_those_who_take_it() -> None:
    async with desk_of(crowd(50)) as desk, aiohttp.ClientSession(auto_decompress=False) as raw:
        url = f"http://127.0.0.1:{desk.port}/api/v1/state"
        async with raw.get(url, headers={"Accept-Encoding": "identity"}) as plain:
            assert "Content-Encoding" not in plain.headers
            whole = await plain.read()
        for accepted in ("gzip", "br;q=1.0, GZIP;q=0.5"):
            async with raw.get(url, headers={"Accept-Encoding": accepted}) as packed:
                assert packed.headers["Content-Encoding"] == "gzip"
                assert packed.headers["Vary"] == "Accept-Encoding"
                body = await packed.read()
            assert gzip.decompress(body) == whole
            assert len(body) < len(whole) / 3
        async with raw.get(url, headers={"Accept-Encoding": "gzip;q=0, br"}) as refused:
            assert await refused.read() == whole


async def test_text_of_strangers_is_escaped_json_and_nothing_else() -> None:
    named = model([server(1, name=HOSTILE, region=HOSTILE)], sentence=HOSTILE, name=HOSTILE)
    async with desk_of(state(1, [named], events=[event(1, text=HOSTILE)])) as desk:
        answer = await desk.get("/api/v1/state")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        [shown] = (await answer.json())["models"]
        assert shown["servers"][0]["name"] == HOSTILE
        reader = await desk.reader()
        told = await reader.event()
        assert told.data == await answer.json(), "one event, whatever a name holds"
        await desk.show(state(2, [replace(named, sessions=5)], events=[event(1, text=HOSTILE)]))
        assert (await reader.event()).kind == "patch"
        assert HOSTILE.encode() not in await (await desk.get("/metrics")).read()


async def test_history_is_asked_as_the_query_says() -> None:
    async with desk_of() as desk:
        column = [None, 1.5]
        desk.watch.histories["demo"] = HistoryState(
            model=MODEL, step_s=30.0, at=[1.0, 2.0], tokens_per_s=column, covered_share=column, servers=[None, 3],
            step_p50_s=column, step_p99_s=column,
        )  # fmt: skip
        answer = await desk.get("/api/v1/history?model=demo&hours=6")
        assert msgspec.json.decode(await answer.read(), type=HistoryState) == desk.watch.histories["demo"]
        assert desk.watch.asked_hours == 6.0
        assert (await (await desk.get("/api/v1/history?model=a%23b%26c")).json())["model"] == "a#b&c"


async def test_events_after_a_number() -> None:
    async with desk_of() as desk:
        desk.watch.all_events = [event(number) for number in range(1, 8)]
        for query, numbers in (("", [1, 2, 3, 4, 5, 6, 7]), ("?after=5", [6, 7]), ("?after=2&limit=3", [5, 6, 7])):
            found = (await (await desk.get(f"/api/v1/events{query}")).json())["events"]
            assert [one["number"] for one in found] == numbers


async def test_a_proof_is_a_file_to_keep() -> None:
    proof = b"<html>" + bytes(range(256)) * 8
    digest = hashlib.sha256(proof).hexdigest()
    async with desk_of() as desk:
        desk.watch.proofs[digest] = proof
        answer = await desk.get(f"/api/v1/proofs/{digest}")
        assert await answer.read() == proof
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{digest}.proof"'
        assert "immutable" in answer.headers["Cache-Control"]
        unknown = await desk.get(f"/api/v1/proofs/{'0' * 64}")
        assert (unknown.status, (await error_of(unknown))["code"]) == (404, "unknown_proof")
        wrong = await desk.get("/api/v1/proofs/XYZ")
        assert (wrong.status, (await error_of(wrong))["param"]) == (400, "digest")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/api/v1/state?verbose=1", "verbose"),
        ("/api/v1/stream?after=1", "after"),
        ("/api/v1/history", "model"),
        ("/api/v1/history?model=a&hours=25", "hours"),
        ("/api/v1/events?limit=0", "limit"),
        ("/api/v1/events?limit=1&limit=2", "limit"),
        ("/api/v1/proofs/" + "a" * 64 + "?x=", "x"),
    ],
)
async def test_a_parameter_that_is_wrong_is_named(path: str, param: str) -> None:
    async with desk_of() as desk:
        answer = await desk.get(path)
        assert (answer.status, (await error_of(answer))["param"]) == (400, param)


async def test_only_reading_is_allowed_and_only_what_is_there() -> None:
    async with desk_of() as desk:
        for path in ("/api/v1/state", "/api/v1/stream", "/metrics", "/healthz"):
            async with desk.client.post(path, data=b"x") as answer:
                assert answer.status == 405
                assert answer.headers["Allow"] == "GET, HEAD"
                await error_of(answer)
            async with desk.client.head(path) as answer:
                assert (answer.status, await answer.read()) == (200, b"")
        for path in (
            "/api/v1",
            "/api/v2/state",
            "/page/..%2fapp.py",
            "/page/../app.py",
            "/page/nothing.js",
            "/x" * 500,
        ):
            answer = await desk.get(path)
            assert answer.status == 404
            assert (await error_of(answer))["code"] == "unknown_url"


async def test_headers_that_keep_browsers_safe() -> None:
    async with desk_of() as desk:
        for path in ("/api/v1/state", "/", "/nothing", "/api/v1/history"):
            answer = await desk.get(path, Origin=ORIGIN)
            policy = answer.headers["Content-Security-Policy"]
            for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):
                assert part in policy
            assert "unsafe" not in policy
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
            assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "Access-Control-Allow-Origin" not in answer.headers
        assert (await desk.get("/api/v1/state", Host="evil.example")).status == 421


async def test_scripts_of_other_origins_only_where_they_were_let_in() -> None:
    async with desk_of(origins=(ORIGIN,)) as desk:
        assert (await desk.get("/api/v1/state", Origin=ORIGIN)).headers["Access-Control-Allow-Origin"] == ORIGIN
        assert (await desk.get("/api/v1/stream?x=", Origin=ORIGIN)).headers["Access-Control-Allow-Origin"] == ORIGIN
        for path, origin in (("/metrics", ORIGIN), ("/api/v1/state", "https://evil.example")):
            assert "Access-Control-Allow-Origin" not in (await desk.get(path, Origin=origin)).headers


async def test_the_page_and_its_files() -> None:
    files = page_files()
    async with desk_of() as desk:
        for name, file in files.items():
            answer = await desk.get("/" if name == "index.html" else f"/page/{name}")
            assert await answer.read() == file.body
            assert answer.content_type == file.content_type
            again = await desk.get(str(answer.url.path), If_None_Match=answer.headers["ETag"])
            assert again.status == 304
    async with desk_of(page=False) as desk:
        assert (await desk.get("/")).status == 404
        assert (await desk.get("/api/v1/state")).status == 200


async def test_healthy_while_the_directory_answers() -> None:
    quiet = state(1, observer=replace(state().observer, directory_at=None))
    async with desk_of(quiet) as desk:
        assert (await desk.get("/healthz")).status == 200, "it has just started"
        await desk.clock.advance(61.0)
        late = await desk.get("/healthz")
        assert (late.status, (await late.json())["directory_age_s"]) == (503, None)

        now_s = BEGAN_AT + 61.0
        await desk.show(state(2, observer=replace(quiet.observer, directory_at=now_s)))
        well = await desk.get("/healthz")
        assert (well.status, (await well.json())["status"]) == (200, "ok")

        await desk.show(state(3, observer=replace(quiet.observer, directory_at=now_s, problem="nobody answers")))
        await desk.clock.advance(61.0)
        lost = await desk.get("/healthz")
        assert (lost.status, (await lost.json())["problem"]) == (503, "nobody answers")


async def test_metrics_of_this_moment_and_no_event_is_missed() -> None:
    async with desk_of(crowd(3)) as desk:
        for number in range(1, 6):
            await desk.show(state(number + 1, crowd(3).models, events=[event(number, "moved")]))
        answer = await desk.get("/metrics")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {one.name: one for one in text_string_to_metric_families(await answer.text())}
        moved = [one.value for one in families["swarm_events"].samples if one.labels == {"kind": "moved"}]
        assert moved == [5.0]
        [age] = families["swarm_state_age_seconds"].samples
        assert age.value == 0.0
        [uptime] = families["swarm_health_uptime_seconds"].samples
        assert uptime.value == 5.0


async def test_what_ends_the_watch_ends_the_service() -> None:
    async with desk_of() as desk:
        running = desk.service.run()
        desk.watch.fail(NetworkError("the daemon died"))
        with pytest.raises(NetworkError, match="the daemon died"):
            await running


async def test_an_error_of_ours_is_told_without_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async with desk_of() as desk:
        desk.watch.proofs = None  # type: ignore[assignment]
        answer = await desk.get(f"/api/v1/proofs/{'a' * 64}")
        assert answer.status == 500
        assert "NoneType" not in json.dumps(await error_of(answer))
        assert "NoneType" in caplog.text


async def test_what_is_no_http_is_told_as_every_error_is() -> None:
    async with desk_of() as desk:
        reader, writer = await asyncio.open_connection("127.0.0.1", desk.port)
        writer.write(b"hello?\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b" 400 " in head.partition(b"\r\n")[0]
        error = json.loads(body)["error"]
        assert set(error) == {"message", "param", "code"}
        assert error["code"] == "malformed_request"
