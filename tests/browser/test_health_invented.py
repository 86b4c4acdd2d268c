"""The health page over invented swarms: crowds, holes, strangers' names, broken connections."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from invented_site import Site
from invented_swarms import AT, chain, crowd, events, history, links, model, peer_id, server, swarm, three
from msgspec import to_builtins
from msgspec.structs import replace
from places import SHOTS
from playwright.sync_api import Page, expect

from swarm.health.state import AdviceState, SwarmState

NASTY = [
    "<img src=x onerror=alert(1)>",
    "</bdi><script>alert(2)</script>",
    "\u202egnp.exe \u2066x",
    "javascript:alert(3)",
    "${alert(4)} {{alert(5)}}",
    "W" * 64,
]
MakeSite = Callable[[SwarmState], Site]
ROWS = ".servers tbody tr"


def rows(page: Page) -> list[str]:
    """The names of the servers shown, in order."""
    return page.locator(f"{ROWS} bdi.name").all_text_contents()


def test_strangers_text_stays_text(site: MakeSite, look: Any) -> None:
    named = [server(i, 0, 30, name=name, region=name, software=name) for i, name in enumerate(NASTY)]
    nasty = "'\"><img src=x onerror=alert(6)>"
    odd = model(nasty, 30, named, sentence=nasty, advice=[AdviceState(start=0, end=9, reason=nasty, command=nasty)])
    told = [replace(event, text=nasty, proof="javascript:alert(7)") for event in events(3)]
    with look(site(swarm(replace(odd, chains=[chain("ab" * 8, named[:2])]), events=told)).url) as page:
        expect(page.locator(ROWS)).to_have_count(len(NASTY))
        assert sorted(rows(page)) == sorted(NASTY)
        for button in page.locator(".more").all():
            button.click()
        assert page.locator("main img, main script, main iframe, [onerror]").count() == 0
        assert page.locator("a[href^='javascript']").count() == 0
        assert page.locator("#models .sentence").inner_text() == nasty
        assert page.locator("#advice code").inner_text() == nasty
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_holes_cannot_be_overlooked(site: MakeSite, look: Any) -> None:
    servers = [server(1, 0, 10), server(2, 5, 10), server(3, 10, 20, condition="silent")]
    with look(site(swarm(model("demo", 30, servers))).url) as page:
        cells = page.locator("#strip .cell")
        expect(cells).to_have_count(30)
        assert [page.locator(f"#strip .{kind}").count() for kind in ("deep1", "deep2", "claimed", "hole")] == [
            5,
            5,
            10,
            10,
        ]
        assert cells.locator("b").all_inner_texts() == ["1"] * 5 + ["2"] * 5 + ["0"] * 20
        patterns = {
            page.locator(f"#strip .{kind}").first.evaluate("e => getComputedStyle(e).backgroundImage")
            for kind in ("claimed", "hole")
        }
        assert len(patterns) == 2
        assert all(pattern.startswith("repeating-linear-gradient") for pattern in patterns)
        expect(page.locator("#coverage-text")).to_have_text("Missing: layers 10–19 (claimed by silent servers), 20–29.")
        assert "20–29" in (page.locator("#strip").get_attribute("aria-label") or "")
        expect(page.locator("#models .mark")).to_have_text("✕ demo")
        page.get_by_text("Coverage as a table").click()
        assert page.locator("#coverage-table td").all_inner_texts()[-3:] == ["layers 20 to 29", "0", "0"]
        assert page.title().startswith("✕ demo")


def test_what_is_unknown_says_why(site: MakeSite, look: Any) -> None:
    silent = server(1, 0, 30, condition="silent", numerics="", software="")
    off = server(2, 0, 30, stats=None, stats_note="off", uplink_mbps=None, rtt_s=None)
    nothing = {
        "tokens_per_s": None,
        "served_tokens_per_s": None,
        "knee_sessions": None,
        "fullness": None,
        "step_p50_s": None,
        "step_p99_s": None,
    }
    with look(site(swarm(model("demo", 30, [silent, off], links=[], usable=False, **nothing))).url) as page:
        expect(page.locator(ROWS)).to_have_count(2)
        unknown = page.locator(".unknown")
        assert unknown.count() > 20
        assert {one.inner_text() for one in unknown.all() if one.is_visible()} == {"–"}
        assert all((one.get_attribute("title") or "").strip() for one in unknown.all() if one.is_visible())
        grey = page.locator(f"{ROWS}.grey")
        expect(grey).to_have_count(1)
        assert "○ silent" in grey.inner_text()
        assert " for " in grey.locator(".state").inner_text().replace("\n", " ")
        assert page.get_by_title("--no-stats").count()
        text = page.locator("main").inner_text()
        assert "NaN" not in text
        assert "null" not in text
        assert "undefined" not in text


def test_no_swarm_yet_then_one(site: MakeSite, look: Any, barriers: Any) -> None:
    there = site(swarm())
    with look(there.url) as page:
        expect(page.get_by_role("heading", name="No model is served yet")).to_be_visible()
        expect(page.locator("#model")).to_be_hidden()
        assert barriers(page) == []
        there.show(swarm(model("demo", 30, three()), revision=2))
        expect(page.locator(ROWS)).to_have_count(3)
        expect(page.locator("#empty")).to_be_hidden()


def test_models_have_addresses(site: MakeSite, look: Any) -> None:
    first, second = model("demo", 30, three()), model("b/ig #2", 60, [server(9, 0, 60)])
    there = site(swarm(first, second))
    with look(there.url) as page:
        expect(page.locator("#models li")).to_have_count(2)
        expect(page.locator("#model-title")).to_have_text("demo")
        page.locator("#models a").nth(1).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#model-title")).to_have_text("b/ig #2")
        expect(page.locator("#strip .cell")).to_have_count(60)
        expect(page.locator("#models [aria-current]")).to_contain_text("b/ig #2")
        there.show(swarm(replace(first, usable=False), second, revision=2))
        expect(page).to_have_title(re.compile("^✕ demo"))  # the broken one, though another is looked at
        address = page.url
        page.go_back()
        expect(page.locator("#model-title")).to_have_text("demo")
    with look(address) as page:
        expect(page.locator("#model-title")).to_have_text("b/ig #2")
        there.show(swarm(first, revision=3))
        expect(page.locator("#model-title")).to_have_text("demo")
        expect(page.locator("#models li")).to_have_count(1)


@pytest.fixture
def five_hundred(site: MakeSite, look: Any) -> Iterator[tuple[Site, Page, SwarmState]]:
    servers = crowd(500)
    chains = [chain(f"{i:016x}", servers[i : i + 3]) for i in range(20)]
    state = swarm(model("crowd", 80, servers, chains=chains, links=links(servers, 16)), events=events(90))
    there = site(state)
    with look(there.url) as page:
        expect(page.locator(ROWS)).to_have_count(500)
        yield there, page, state


def test_every_column_sorts(site: MakeSite, look: Any) -> None:
    state = swarm(model("crowd", 80, crowd(60)))
    with look(site(state).url) as page:
        expect(page.locator(ROWS)).to_have_count(60)
        _sort_by_every_column(page, state)


def _sort_by_every_column(page: Page, state: SwarmState) -> None:
    heads = page.locator(".servers thead button")
    assert heads.count() >= 20
    by_name = {one.name: one for one in state.models[0].servers}
    for i in range(heads.count()):
        heads.nth(i).click()
        expect(page.locator(".servers thead th").nth(i)).to_have_attribute("aria-sort", "ascending")
    page.get_by_role("button", name="τ per layer").click()
    known = [by_name[name].tau_s for name in rows(page)]
    values = [tau_s for tau_s in known if tau_s is not None]
    assert values == sorted(values)
    assert known[len(values) :] == [None] * (len(known) - len(values)), "what is unknown stands last"
    page.get_by_role("button", name="τ per layer").click()
    expect(page.locator("th.tau")).to_have_attribute("aria-sort", "descending")
    known = [by_name[name].tau_s for name in rows(page)]
    assert known[: len(values)] == sorted(values, reverse=True)


def test_the_filter_finds_names_peers_and_states(five_hundred: tuple[Site, Page, SwarmState]) -> None:
    _, page, state = five_hundred
    box = page.get_by_label("Filter")
    for asked, wanted in (
        ("VOLUNTEER-77", {"volunteer-77"}),
        (peer_id(12), {"volunteer-12"}),
        ("silent", {one.name for one in state.models[0].servers if one.condition == "silent"}),
        ("no such server", set()),
    ):
        box.fill(asked)
        assert set(rows(page)) == wanted
        expect(page.locator(".count")).to_have_text(f"{len(wanted)} of 500 servers")
    box.fill("")
    assert len(rows(page)) == 500


def test_a_patch_touches_only_what_changed(five_hundred: tuple[Site, Page, SwarmState]) -> None:
    there, page, state = five_hundred
    [crowded] = state.models
    page.evaluate(
        """() => {
          window.touched = new Set();
          const rowOf = (node) => (node.nodeType === 1 ? node : node.parentElement).closest('.servers tbody tr');
          new MutationObserver((all) => {
            for (const one of all) {
              if (one.target.parentElement?.closest('time') || one.target.closest?.('time')) continue;
              const row = rowOf(one.target);
              if (row) touched.add(row.querySelector('bdi.name').textContent);
            }
          }).observe(document.querySelector('.servers'), {
            subtree: true, childList: true, characterData: true, attributes: true,
          });
        }"""
    )
    changed = {server.peer for server in crowded.servers[40:60] if server.condition == "serving"}
    gone = crowded.servers[0]
    servers = [
        replace(server, queued_steps=77, seen_at=AT + 5) if server.peer in changed else server
        for server in crowded.servers[1:]
    ] + [server(9999, 3, 9, name="newcomer")]
    there.show(swarm(replace(crowded, servers=servers), revision=2, at=AT + 5))
    expect(page.locator(ROWS, has_text="newcomer")).to_have_count(1)
    expect(page.locator(ROWS)).to_have_count(500)
    names = {server.name for server in servers if server.peer in changed}
    assert set(page.evaluate("[...touched]")) - {"newcomer"} == names
    assert page.locator("td.queue", has_text="77").count() == len(changed)
    assert gone.name not in rows(page)


def test_many_patches_leave_what_a_fresh_page_shows(five_hundred: tuple[Site, Page, SwarmState], look: Any) -> None:
    there, page, state = five_hundred
    dice = random.Random(1)
    [crowded] = state.models
    servers, ways = list(crowded.servers), list(crowded.links)
    page.evaluate("document.querySelector('#links .scroller').focus({preventScroll: true})")
    for revision in range(2, 8):
        for i in dice.sample(range(len(servers)), 40):
            servers[i] = replace(servers[i], tau_s=dice.uniform(0.001, 0.01), sessions=dice.randrange(50))
        servers.remove(dice.choice(servers))
        servers.append(server(1000 + revision, 0, 5 + revision))
        ways = [replace(way, rtt_s=dice.uniform(0.001, 0.5)) if dice.random() < 0.01 else way for way in ways]
        state = swarm(replace(crowded, servers=list(servers), links=ways), revision=revision, at=AT + revision)
        there.show(state)
        page.wait_for_function("(n) => performance.getEntriesByName('swarm-draw').length >= n", arg=revision)
    expect(page.locator(ROWS, has_text="volunteer-1007")).to_have_count(1)
    expect(page.locator("#links .scroller")).to_be_focused()  # and so keeps its place under the keys
    drawn = page.evaluate("performance.getEntriesByName('swarm-draw').map((one) => one.duration)")
    (SHOTS / "script-ms-per-patch.json").write_text(json.dumps([round(ms, 1) for ms in drawn[1:]]))
    with look(there.url) as fresh:
        expect(fresh.locator(ROWS)).to_have_count(500)
        for part in (".servers tbody", "#links", "#coverage-text", "#tiles"):
            texts = [
                each.locator(part).evaluate(
                    "e => [...e.querySelectorAll('time')].forEach(t => t.remove()) || e.innerText"
                )
                for each in (page, fresh)
            ]
            assert texts[0] == texts[1], part


def test_a_broken_connection_is_told_and_mended(site: MakeSite, look: Any) -> None:
    there = site(swarm(model("demo", 30, three())))
    with look(there.url) as page:
        status = page.locator("#status")
        expect(status).to_have_text("● live")
        there.down()
        expect(status).to_contain_text("reconnecting; what you see is")
        expect(page.locator("body")).to_have_class("stale")
        expect(page).to_have_title(re.compile("^◌ demo"))
        expect(page.locator("#icon")).to_have_attribute("href", "page/icon-old.svg")
        expect(page.locator(ROWS)).to_have_count(3)
        there.show(swarm(model("demo", 30, three()[:2]), revision=2))
        there.up()
        expect(status).to_have_text("● live", timeout=30_000)
        expect(page.locator(ROWS)).to_have_count(2)
        expect(page.locator("#announcer")).to_contain_text(f"demo: {model('demo', 30, three()[:2]).sentence}")
        expect(page).to_have_title(re.compile("^✕ demo"))
        page.watched.forgive("ERR_")


def test_a_silent_directory_is_told(site: MakeSite, look: Any) -> None:
    state = swarm(model("demo", 30, three()))
    problem = replace(state.observer, directory_at=AT - 7300, problem="no node of the directory answers")
    with look(site(replace(state, observer=problem)).url) as page:
        expect(page.locator("#problem")).to_have_text(
            re.compile(r"no node of the directory answers \(the directory: it last answered 2 h \d min ago\)")
        )


def test_ages_tick_by_the_servers_clock(site: MakeSite, look: Any) -> None:
    now = time.time()
    one = server(1, 0, 30, seen_at=now - 40)
    with look(site(swarm(model("demo", 30, [one]), at=now - 20)).url) as page:
        seen = page.locator("td.seen time")
        expect(seen).to_have_text(re.compile(r"^[45]\d s ago$"))  # the state is 20 s old, and that counts
        expect(seen).not_to_have_text(seen.inner_text())
        expect(seen).to_have_text(re.compile(r"^([45]\d s|1 min) ago$"))


def test_what_a_newcomer_asks_is_told(site: MakeSite, look: Any) -> None:
    """Words, what is over, when a figure was, and layers in rows without a short rest."""
    live = [replace(one, sessions=0) for one in three()]
    late = chain("fedcba9876543210", live)
    late = replace(late, stages=[replace(stage, figures_at=AT - 40) for stage in late.stages])
    waiting = replace(late, label="ab" * 8, stages=[replace(stage, peer=peer_id(8)) for stage in late.stages])
    state = swarm(model("demo", 30, live, chains=[chain("0123456789abcdef", live), late, waiting]))
    with look(site(state).url) as page:
        notes = page.locator(".chain > .note:first-of-type")
        expect(notes).to_have_count(3)
        texts = notes.all_inner_texts()
        assert [text.partition(" ")[0] for text in texts] == ["open", "no", "over:"], texts
        expect(page.locator("#tiles")).to_contain_text("beyond, each gets slower")
        expect(page.locator("#servers > .note")).to_contain_text(["τ: how long", ""])
        for width, rows_wanted in ((1280, 1), (800, 1), (390, 2)):
            page.set_viewport_size({"width": width, "height": 800})
            tops = "[...document.querySelectorAll('#strip .cell')].map((one) => one.offsetTop)"
            page.wait_for_function(f"new Set({tops}).size === {rows_wanted}")
            placed = page.evaluate(tops)
            assert {placed.count(top) for top in placed} == {30 // rows_wanted}
        one_row = json.dumps({name: value[:1] if isinstance(value, list) else value for name, value in _past().items()})
        page.route("**/api/v1/history*", lambda route: route.fulfill(body=one_row, content_type="application/json"))
        page.get_by_role("button", name="6 h").click()
        expect(page.locator("#history > .note")).to_have_text(re.compile(r"^Kept since \d\d:\d\d, a value every 1 min"))
        expect(page.locator("#history figcaption").nth(1)).to_have_text(re.compile(r"latest, at \d\d:\d\d: 9\d %$"))


def _past() -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(history("demo", 1.0))
    return found


def test_a_command_is_copied_or_selected(site: MakeSite, look: Any) -> None:
    there = site(swarm(model("demo", 30, three()[:2])))
    command = there.state.models[0].advice[0].command
    with look(there.url, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_role("button", name="Copy the command").click()
        expect(page.locator("#announcer")).to_contain_text("Copied the command")
        assert page.evaluate("navigator.clipboard.readText()") == command
    with look(there.url) as page:
        page.evaluate("""() => {
          navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden'));
          document.execCommand = () => false;
        }""")
        page.get_by_role("button", name="Copy the command").click()
        expect(page.locator("#announcer")).to_contain_text("press Control C")
        assert page.evaluate("getSelection().toString()") == command


def test_it_works_by_keyboard_alone(site: MakeSite, look: Any) -> None:
    with look(site(swarm(model("demo", 30, three()))).url) as page:
        expect(page.locator(ROWS)).to_have_count(3)
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        button = page.locator(".more").first
        button.focus()
        page.keyboard.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "true")
        expect(page.locator(".detail .peer")).to_have_text(peer_id(1))
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Copy the peer id")).to_be_focused()
        button.focus()
        page.keyboard.press("Space")
        expect(page.locator(".detail")).to_have_count(0)


@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_anybody_can_read_it(size: str, scheme: str, site: MakeSite, look: Any, barriers: Any, shoot: Any) -> None:
    servers = [
        *three(), server(4, 0, 12, name=NASTY[0]), server(5, 8, 20, condition="joining", intent=(20, 30)),
        server(6, 20, 27, condition="silent", name=""), server(7, 3, 9, condition="ejected"),
    ]  # fmt: skip
    chains = [chain("0123456789abcdef", three()), replace(chain("fedcba9876543210", servers[:2]), complete=False)]
    whole = model("demo", 30, servers, chains=chains, rebalances_per_hour=90.0)
    state = swarm(whole, model("large", 128, [*servers[:2], servers[5]]), events=events(40))
    with look(site(state).url, size=size, scheme=scheme) as page:
        expect(page.locator(ROWS)).to_have_count(7)
        expect(page.locator("canvas")).to_have_count(4)
        shoot(page, f"invented-{size}-{scheme}")
        page.locator(".more").first.click()
        page.get_by_text("Coverage as a table").click()
        page.get_by_text("History as a table").click()
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it fits"
        page.locator("#models a").nth(1).click()
        expect(page.locator("#strip .cell")).to_have_count(128)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "128 layers fit"
        shoot(page, f"invented-large-{size}-{scheme}")
