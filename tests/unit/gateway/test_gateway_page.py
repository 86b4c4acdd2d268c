"""The chat page: nothing inline, nothing from elsewhere, and no text that could become markup."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from page_tags import Tags

from swarm.gateway.app import PAGE

FILES = resources.files("swarm.gateway") / "page"
SCRIPTS = [name for name in PAGE if name.endswith(".js")]
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")


def source(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def test_the_policy_forbids_nothing_that_the_page_needs() -> None:
    page = Tags(source("index.html"))
    assert page.inline == ""
    for tag, attributes in page.tags:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
    links = [a.get("src") or a.get("href") for _, a in page.tags if a.get("src") or a.get("href")]
    named = {str(link).removeprefix("page/") for link in links}
    for name in SCRIPTS:
        named |= set(re.findall(r'^import .*?"\./([\w.]+)";$', source(name), re.MULTILINE))
    assert named == set(PAGE) - {"index.html"}


def test_a_label_for_every_field_and_a_language() -> None:
    page = Tags(source("index.html"))
    labelled = {attributes["for"] for tag, attributes in page.tags if tag == "label"}
    fields = {attributes["id"] for tag, attributes in page.tags if tag in ("input", "textarea")}
    assert fields == labelled
    assert ("html", {"lang": "en"}) in page.tags
    assert any(attributes.get("name") == "viewport" for _, attributes in page.tags)


def test_the_three_claims_are_there() -> None:
    text = source("index.html")
    for claim in ("attributed", "spot-checked", "never confidential"):
        assert f"<b>{claim}</b>" in text


@pytest.mark.parametrize("name", MARKUP)
def test_no_text_becomes_markup(name: str) -> None:
    assert [script for script in SCRIPTS if name in source(script)] == []


def test_nothing_comes_from_elsewhere() -> None:
    for name in PAGE:
        addresses = set(re.findall(r"https?://[^\s\"')]+", source(name)))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_every_element_that_the_script_wants_is_on_the_page() -> None:
    wanted = {name for script in SCRIPTS for name in re.findall(r'one\("(\w+)"\)', source(script))}
    there = {attributes.get("id") for _, attributes in Tags(source("index.html")).tags}
    assert wanted
    assert wanted <= there


def test_it_is_readable_in_the_dark() -> None:
    styles = source("chat.css")
    light, dark = styles.split("@media (prefers-color-scheme: dark)")
    colours = set(re.findall(r"--[\w-]+(?=:)", light))
    assert colours
    assert colours == set(re.findall(r"--[\w-]+(?=:)", dark))
