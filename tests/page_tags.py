"""What a page's HTML holds, for tests that look at the files of our web pages."""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags of a page with their attributes, and what stands inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        if self._in in ("script", "style"):
            self.inline += data.strip()

    def handle_endtag(self, tag: str) -> None:
        self._in = ""
