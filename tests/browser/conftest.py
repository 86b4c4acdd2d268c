"""A real browser (Debian's Chromium), and pages that are watched for anything they must never do."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: what the tests share lies beside them

from axe_playwright_python.sync_playwright import Axe
from invented_site import Site
from places import SHOTS
from playwright.sync_api import Browser, Page, sync_playwright
from processes_at_hand import Launcher
from processes_at_hand import nursery as nursery
from real_swarm import RealSwarm

from benchmarks.nursery import Nursery
from swarm.health.state import SwarmState
from swarm.models import ModelFiles

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZES = {"desktop": (1440, 900), "phone": (360, 740)}
TOLD = "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"


def chromium() -> str:
    """The browser's path; fails where there is none, for a test that is left out proves nothing."""
    found = os.environ.get("SWARM_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("no Chromium: `make tools` installs it; or set SWARM_BROWSER to the path of one", pytrace=False)
    return found


@dataclass
class Watched:
    """What a page did that it should not have: errors, words on the console, dialogs, requests to elsewhere."""

    origin: str
    faults: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.add_init_script(TOLD)
        page.on("console", lambda said: said.type in ("error", "warning") and self._fault("console", said.text))
        page.on("pageerror", lambda error: self._fault("error", str(error)))
        page.on("dialog", lambda dialog: (self._fault("dialog", dialog.message), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(self.origin) or self._fault("elsewhere", asked.url))

    def forgive(self, pattern: str) -> None:
        """What a test brought about itself is no fault."""
        self.faults = [fault for fault in self.faults if not re.search(pattern, fault)]

    def _fault(self, kind: str, text: str) -> None:
        self.faults.append(f"{kind}: {text}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # In a container there is neither a sandbox to be had nor much shared memory.
        found = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


Look = Callable[..., Any]


@pytest.fixture(scope="session")
def look(browser: Browser) -> Look:
    """``with look(url, size="phone", scheme="dark") as page``: a page that is open there.

    At the end it is checked: no fault, and nothing asked of anybody but ``url``'s own server. ``page.watched`` has the
    faults so far.
    """

    @contextmanager
    def looking(url: str, *, size: str = "desktop", scheme: Any = "light", **options: Any) -> Iterator[Page]:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        watched = Watched(url.split("/#")[0].rstrip("/"))
        page = context.new_page()
        watched.watch(page)
        page.watched = watched  # type: ignore[attr-defined]
        try:
            page.goto(url)
            yield page
            assert watched.faults == []
        finally:
            context.close()

    return looking


@pytest.fixture(scope="session")
def shoot() -> Callable[[Page, str], None]:
    """``shoot(page, name)``: a picture for people to look at, in ``build/screenshots``."""

    def shot(page: Page, name: str) -> None:
        # A window as high as the page: what never was in sight would be empty in the picture.
        size = page.viewport_size or {"width": 0, "height": 0}
        page.set_viewport_size(size | {"height": page.evaluate("document.documentElement.scrollHeight")})
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.screenshot(path=SHOTS / f"{name}.png")
        page.set_viewport_size(size)

    return shot


@pytest.fixture(scope="session")
def barriers() -> Callable[[Page], list[str]]:
    """``barriers(page)``: what axe finds that keeps people out, serious or critical."""
    axe = Axe()

    def find(page: Page) -> list[str]:
        found = axe.run(page).response["violations"]
        return [
            f"{one['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    return find


@pytest.fixture(scope="session")
def real(
    demo_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None
) -> Iterator[RealSwarm]:
    """The one real swarm of all these tests: leave it as you found it."""
    launcher = Launcher(tmp_path_factory.mktemp("real"), nursery)
    try:
        yield RealSwarm.start(launcher)
    finally:
        launcher.end()


@pytest.fixture
def site() -> Iterator[Callable[[SwarmState], Site]]:
    """``site(state)``: the health page over an invented swarm."""
    made: list[Site] = []

    def make(state: SwarmState) -> Site:
        made.append(Site(state))
        return made[-1]

    yield make
    for one in made:
        one.close()
