"""One headless Chromium for all tests of a session; without it, tests that need it are skipped with the reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import run_factory
from component_pages import make_component_page

from heatlas.reports.content.relevance import maps as group_maps
from heatlas.reports.figures import gallery
from heatlas.reports.figures.gallery import new_figure
from heatlas.reports.page import parts

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def kept_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One folder for all processes of the session, in which `run_factory.make_run` keeps what it made."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_factory, "KEPT", folder / "made-runs")
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_surfaces() -> Iterator[None]:
    """Reports with an empty figure in place of each surface, which takes seconds; test_surfaces.py draws them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_maps, "draw_group_maps", lambda *_: new_figure(1, 1, facecolor="black"))
        yield


@contextmanager
def empty_pictures() -> Iterator[None]:
    """Figures are drawn, and their files are empty: writing them is half of the time of a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "rendered", lambda *_, **__: b"")
        yield


@pytest.fixture
def unrendered() -> Iterator[None]:
    with empty_pictures():
        yield


@pytest.fixture(scope="module")
def all_unrendered() -> Iterator[None]:
    """The same for what all tests of a module share."""
    with empty_pictures():
        yield


DRAWN = ("Hippocampus", "Amygdala", "Lateral ventricle", "Vessel")
"""Regions that have a page wherever a whole report is made: planted ones, and the one without a gain."""


@pytest.fixture(scope="module", autouse=True)
def few_region_pages(request) -> Iterator[None]:
    """Whole reports with the pages of a few regions, the others empty; a module with ``EVERY_PAGE`` makes them all."""
    whole = parts._region_page

    def page(shared, group, around):
        return whole(shared, group, around) if group in DRAWN else ""

    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "EVERY_PAGE", False):
            patch.setattr(parts, "_region_page", page)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright: install the test group of pyproject.toml")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A page with a viewer and an explorer."""
    return make_component_page(tmp_path_factory.mktemp("components"))


@contextmanager
def visiting(browser) -> Iterator[Callable[..., object]]:
    """Open pages without a network; at the end, nothing may have been asked of the outside, or gone wrong."""
    contexts, outside, errors = [], [], []

    def noted(request) -> None:
        if urlsplit(request.url).scheme not in ("file", "data", "blob"):
            outside.append(request.url)

    def go(path: Path, width: int = 1280, **options: object):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()
        page.on("request", noted)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.goto(path.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert outside == []
    assert errors == []


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., object]]:
    with visiting(browser) as go:
        yield go


@pytest.fixture(scope="module")
def visit_once(browser) -> Iterator[Callable[..., object]]:
    """The same for pages that all tests of a module share."""
    with visiting(browser) as go:
        yield go
