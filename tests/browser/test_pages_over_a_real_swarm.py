"""The web pages over a real swarm, all processes: ``swarm.health`` and the gateway's chat page. One file, one swarm."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, Route, expect
from real_swarm import NAMES, TALKATIVE, RealSwarm

SEEN_MS = 30_000
ANSWERED_MS = 90_000
HOLE_S = 12.0
ROWS = ".servers tbody tr"
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}]}


@contextmanager
def generating(url: str) -> Iterator[None]:
    """Somebody reads a long answer from the gateway meanwhile."""
    done = threading.Event()

    def read() -> None:
        with httpx2.stream(
            "POST", f"{url}/v1/chat/completions", json=QUESTION | TALKATIVE | {"stream": True}, timeout=120.0
        ) as stream:
            for _ in stream.iter_lines():
                if done.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        done.set()
        reader.join()


def complete(page: Page) -> None:
    """Every layer is served, by one server each."""
    expect(page.locator("#strip .deep1")).to_have_count(30, timeout=SEEN_MS)
    expect(page.locator(f"{ROWS} .condition.serving")).to_have_count(3, timeout=SEEN_MS)


def ask(page: Page, question: str) -> Any:
    """Sends a question; the answer's place on the page."""
    page.get_by_label("Your message").fill(question)
    page.get_by_role("button", name="Send").click()
    return page.locator("#talk li.assistant").last


def replying(reply: dict[str, Any] | None) -> Callable[[Route], None]:
    """Answers a request so, instead of the gateway; None: the connection fails."""
    return lambda route: route.fulfill(**reply) if reply else route.abort()


def test_coverage_and_servers_are_shown(real: RealSwarm, look: Any) -> None:
    with look(real.health_url) as page:
        complete(page)
        expect(page.locator("#models .mark")).to_contain_text("✓")
        expect(page.locator("#models .sentence")).to_contain_text("tokens/s")
        assert page.locator("#strip .cell b").all_inner_texts() == ["1"] * 30
        shown = {row.locator("bdi.name").inner_text(): row for row in page.locator(ROWS).all()}
        assert set(shown) == set(NAMES)
        for i, (name, row) in enumerate(shown.items()):
            row.locator(".more").click()
            expect(row.locator("code.peer")).to_have_text(real.servers[i].peer)
            expect(row.locator("td.layers")).to_contain_text(f"{10 * i}–{10 * i + 9}")
            expect(row.locator("td.tau")).to_contain_text("ms")
            expect(row.locator("td.reach")).to_contain_text("✓", timeout=SEEN_MS)
            expect(row.locator("td.numerics")).to_contain_text("float32")
            assert name != NAMES[1] or row.locator("img").count() == 0
        expect(page.locator("canvas")).to_have_count(4)
        assert page.locator("main img").count() == 0, "a name is a name, not markup"


def test_a_chain_appears_while_it_generates(real: RealSwarm, look: Any, shoot: Any) -> None:
    with look(real.health_url) as page:
        complete(page)
        with generating(real.gateway_url):
            stages = page.locator(".chain:not(.partial) li.stage")
            expect(stages).to_have_count(3, timeout=SEEN_MS)
            assert stages.locator("bdi").all_inner_texts() == list(NAMES)
            expect(stages.last.locator(".told")).to_contain_text("compute")
            expect(page.locator(".chain h4").first).to_contain_text("tokens/s", timeout=SEEN_MS)
            expect(page.locator(".chain > p.stage .told").first).to_contain_text("ms", timeout=SEEN_MS)
            expect(page.locator(".matrix td b").first).to_contain_text("ms", timeout=SEEN_MS)
            for size, scheme in (("desktop", "light"), ("phone", "dark")):
                with look(real.health_url, size=size, scheme=scheme) as other:
                    expect(other.locator(".chain").first).to_be_visible(timeout=SEEN_MS)
                    shoot(other, f"health-{size}-{scheme}")


@pytest.mark.parametrize(
    ("size", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("phone", "light"), ("phone", "dark")]
)
def test_axe_finds_nothing_serious(size: str, scheme: str, real: RealSwarm, look: Any, barriers: Any) -> None:
    with look(real.health_url, size=size, scheme=scheme) as page:
        complete(page)
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_chat_streams_with_its_speed_and_its_chain(real: RealSwarm, look: Any, barriers: Any, shoot: Any) -> None:
    with look(real.gateway_url) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        page.evaluate(
            """() => {
              window.lengths = [];
              new MutationObserver(() => {
                const said = document.querySelector('#talk li.assistant .said');
                if (said) lengths.push(said.textContent.length);
              }).observe(document.getElementById('talk'), {subtree: true, childList: true, characterData: true});
            }"""
        )
        answer = ask(page, "Name three colours.")
        expect(answer.locator(".note")).to_contain_text(" → ", timeout=ANSWERED_MS)
        note = answer.locator(".note").inner_text()
        assert "tokens/s" in note
        assert [f"{name}[{10 * i}:{10 * i + 10}]" in note for i, name in enumerate(NAMES)] == [True] * 3
        assert answer.locator(".said").inner_text()
        assert len(set(page.evaluate("lengths")) - {0}) >= 3, "it came piece by piece"
        assert page.locator("main img").count() == 0
        assert barriers(page) == []
        shoot(page, "chat-desktop-light")


def test_stop_ends_a_chats_answer_and_the_next_question_works(real: RealSwarm, look: Any) -> None:
    with look(real.gateway_url) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        answer = ask(page, "Write down the numbers from one to five hundred, in words.")
        expect(answer.locator(".said")).not_to_be_empty(timeout=ANSWERED_MS)
        page.get_by_role("button", name="Stop").click()
        expect(answer.locator(".note")).to_have_text("stopped; what came so far stays in the conversation")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.get_by_label("Your message")).to_be_focused()
        with page.expect_request("**/chat/completions") as asked:
            answer = ask(page, "Say yes.")
        said = [message["role"] for message in asked.value.post_data_json["messages"]]
        assert said == ["user", "assistant", "user"]
        expect(answer.locator(".note")).to_contain_text(" → ", timeout=ANSWERED_MS)


def test_no_text_takes_long_to_be_laid_out(real: RealSwarm, look: Any) -> None:
    """The last server chooses it."""
    with look(real.gateway_url) as page:
        for mark in "~", "`", " ", "``` ", "~~~\n", "\n":
            text = mark * (200_000 // len(mark)) + "`"
            script = "async (text) => (await import('/page/message.js')).parts('```' + text) && true"
            assert page.evaluate(script, text)


def test_no_failure_takes_what_was_typed(real: RealSwarm, look: Any) -> None:
    refusal = {"error": {"message": "nobody serves layers 20 to 29 of demo", "code": "layers_missing"}}
    begun = 'data: {"choices": [{"delta": {"content": "One <b>\\n\\n```py\\nx = 1"}, "finish_reason": null}]}\n\n'
    cut = 'data: {"error": {"message": "a server was lost"}}\n\n'
    with look(real.gateway_url) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        for reply, told, left in (
            (None, "the gateway cannot be reached", 1),
            ({"status": 503, "json": refusal, "headers": {"Retry-After": "7"}}, "(try again in 7 s)", 1),
            ({"body": begun + cut, "content_type": "text/event-stream"}, "cut short: a server was lost", 1),
            ({"body": begun, "content_type": "text/event-stream"}, "cut short: the connection ended", 2),
        ):
            page.route("**/chat/completions", replying(reply))
            answer = ask(page, "Precious words")
            expect(answer.locator(".note.wrong")).to_contain_text(told)
            expect(page.get_by_label("Your message")).to_have_value("Precious words")
            expect(page.locator("#talk li.user")).to_have_count(left)  # what came to nothing is gone when asked again
        assert answer.locator("pre code").inner_text() == "x = 1"
        assert answer.locator(".said p").inner_text() == "One <b>"
        page.unroute_all()
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_label("Your message")).to_have_value("")
        expect(page.locator("#talk li.assistant .said").last).not_to_be_empty(timeout=ANSWERED_MS)
        page.watched.forgive("ERR_FAILED|503")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light"), ("phone", "dark")])
def test_anybody_can_chat(size: str, scheme: str, real: RealSwarm, look: Any, barriers: Any, shoot: Any) -> None:
    with look(real.gateway_url, size=size, scheme=scheme) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, f"chat-{size}-{scheme}")


def test_a_killed_server_turns_grey_and_leaves_a_hole(real: RealSwarm, look: Any, shoot: Any) -> None:
    with look(real.health_url) as page:
        complete(page)
        killed = real.servers[2]
        killed.note_children()
        killed.signal(signal.SIGKILL)
        began_s = time.monotonic()
        expect(page.locator("#strip .claimed, #strip .hole")).to_have_count(10, timeout=1000 * HOLE_S)
        expect(page.locator(f"{ROWS}.grey bdi.name")).to_have_text(NAMES[2], timeout=1000 * HOLE_S)
        assert time.monotonic() - began_s < HOLE_S
        expect(page.locator("#models .sentence")).to_contain_text("nobody serves layers 20 to 29")
        expect(page.locator("#models .mark")).to_contain_text("✕")
        expect(page.locator("#coverage-text")).to_contain_text("Missing: layers 20–29")
        expect(page.locator(f"{ROWS}.grey td.state")).to_contain_text("for ")
        expect(page.locator("#events .kind", has_text="unusable").first).to_be_visible()
        expect(page.locator("#advice code").first).to_contain_text("--blocks 20:30")
        expect(page.locator("#announcer")).to_contain_text("nobody serves layers 20 to 29")
        shoot(page, "health-hole")
        real.restart(2)
        complete(page)
        expect(page.locator(f"{ROWS}.grey")).to_have_count(0)
        expect(page.locator("#models .mark")).to_contain_text("✓")
