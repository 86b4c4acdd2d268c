"""The gateway's chat page in a browser, over the real swarm."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from real_swarm import NAMES, RealSwarm

pytestmark = pytest.mark.xdist_group("real")  # one swarm is enough
ANSWERED_MS = 90_000


def ask(page: Page, question: str) -> Any:
    """Sends a question; the answer's place on the page."""
    page.get_by_label("Your message").fill(question)
    page.get_by_role("button", name="Send").click()
    return page.locator("#talk li.assistant").last


def test_an_answer_streams_with_its_speed_and_its_chain(real: RealSwarm, look: Any, barriers: Any, shoot: Any) -> None:
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


def test_stop_ends_an_answer_and_the_next_question_works(real: RealSwarm, look: Any) -> None:
    with look(real.gateway_url) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        answer = ask(page, "Write down the numbers from one to five hundred, in words.")
        expect(answer.locator(".said")).not_to_be_empty(timeout=ANSWERED_MS)
        page.get_by_role("button", name="Stop").click()
        expect(answer.locator(".note")).to_have_text("stopped; not part of the conversation")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.get_by_label("Your message")).to_be_focused()
        expect(ask(page, "Say yes.").locator(".note")).to_contain_text(" → ", timeout=ANSWERED_MS)


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("phone", "light"), ("phone", "dark")])
def test_anybody_can_use_it(size: str, scheme: str, real: RealSwarm, look: Any, barriers: Any, shoot: Any) -> None:
    with look(real.gateway_url, size=size, scheme=scheme) as page:
        expect(page.locator("#model")).to_contain_text("30 layers")
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, f"chat-{size}-{scheme}")
