"""The health page's files: nothing inline, nothing from elsewhere, and no text that could become markup."""

from __future__ import annotations

import re

import pytest
from page_tags import Tags

from swarm.health.web.app import page_files

MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
VENDORED = "uplot."
FILES = {name: file.body.decode() for name, file in page_files().items()}
OURS = {name: text for name, text in FILES.items() if not name.startswith(VENDORED)}
MODULES = {name: text for name, text in OURS.items() if name.endswith(".js")}


PAGE = Tags(FILES["index.html"])


def test_the_policy_forbids_nothing_that_the_page_needs() -> None:
    assert PAGE.inline == ""
    for tag, attributes in PAGE.tags:
        assert tag != "style"
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


def test_every_file_that_is_named_is_there_and_no_other() -> None:
    links = {str(a.get("src") or a.get("href")) for tag, a in PAGE.tags if tag in ("script", "link", "img")}
    named = {link.removeprefix("page/") for link in links}
    imports = re.compile(r'^import .*?"\./([\w.]+)";$', re.MULTILINE | re.DOTALL)
    for text in MODULES.values():
        named |= set(imports.findall(text)) | set(re.findall(r'"([\w-]+\.svg)"', text))
    told = {name for name in FILES if name.endswith(".txt")} | {"index.html", "types.js"}
    assert named == set(FILES) - told


def test_links_are_relative_so_that_it_works_below_any_path() -> None:
    for _, attributes in PAGE.tags:
        for name in ("src", "href"):
            assert not str(attributes.get(name, "")).startswith(("/", "http"))
    assert not [name for name, text in MODULES.items() if re.search(r'["`]/(api|page)/', text)]


def test_every_element_that_a_module_wants_is_on_the_page() -> None:
    there = {attributes.get("id") for _, attributes in PAGE.tags}
    for name, text in MODULES.items():
        wanted = set(re.findall(r'\bone\("([\w-]+)"\)', text))
        assert wanted <= there, name


@pytest.mark.parametrize("word", MARKUP)
def test_no_text_becomes_markup(word: str) -> None:
    assert MODULES
    assert [name for name, text in MODULES.items() if word in text] == []


def test_nothing_comes_from_elsewhere() -> None:
    for name, text in OURS.items():
        addresses = set(re.findall(r"https?://[^\s\"')]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert "@import url" not in text
    assert "url(" not in "".join(text for name, text in FILES.items() if name.endswith(".css"))


def test_what_is_vendored_says_what_it_is() -> None:
    version = re.search(r"uPlot (\d+\.\d+\.\d+)", FILES["uplot.VERSION.txt"])
    assert version is not None
    assert f"(v{version[1]})" in FILES["uplot.js"]
    assert "MIT License" in FILES["uplot.LICENSE.txt"]


def test_it_is_readable_in_the_dark() -> None:
    light, _, rest = FILES["base.css"].partition("@media (prefers-color-scheme: dark)")
    dark = rest[: rest.index("\n}")]
    colours = set(re.findall(r"--[\w-]+(?=:)", light))
    assert colours
    assert colours == set(re.findall(r"--[\w-]+(?=:)", dark))
    used = {name for text in FILES.values() for name in re.findall(r"var\((--[\w-]+)", text)}
    assert used <= colours
