"""Make the sample reports and the pictures of the documentation from two finished runs, in one go.

``python docs/showcase.py DEMO PATIENTS`` (``make showcase``) copies pages of both reports to ``docs/sample_report`` and
photographs these copies for ``docs/images``, so that pictures and pages show the same numbers. A link to a page that
is not copied becomes plain text. ``docs/images/pictures.tsv`` records the page of each picture, and its digest.
The run of patients must show groups only (``[report] people = false``).
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

DOCS = Path(__file__).parent
SAMPLE, IMAGES = DOCS / "sample_report", DOCS / "images"
PERSON = "sub-ADNI991S9010"
"""The synthetic person whose page is shown."""
CHAPTERS = ("report.html", "report-*.html")
PAGES = {
    ".": (*CHAPTERS, "pages/region-hippocampus.html", f"{PERSON}.html"),
    "patients": (*CHAPTERS, "pages/region-hippocampus.html", "pages/region-amygdala.html"),
}
"""Pages that are copied, by folder of the sample report."""


class Shot(NamedTuple):
    """A picture of a page: of one element, or of the first screen where none is named."""

    page: str
    element: str = ""
    height: int = 900


PICTURES = {
    "report_summary.png": Shot("report.html"),
    "report_difference.png": Shot("report.html", "#brain figure"),
    "report_ranking.png": Shot("report.html", "#ranking figure"),
    "report_viewer.png": Shot("report-maps.html", "figure.viewer"),
    "report_explorer.png": Shot("report-regions.html", ".explorer", 1700),
    "report_participant.png": Shot(f"{PERSON}.html"),
    "patients_maps.png": Shot("patients/report.html", "#brain figure"),
    "patients_cards.png": Shot("patients/report.html", ".answers"),
    "patients_differences.png": Shot("patients/report-regions.html", "#image-differences figure"),
}

ALL_IMAGES = """() => {
  for (const image of document.images) image.loading = "eager";
  return Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
}"""
"""Script that loads the images that wait until they are scrolled to."""

_HREF = re.compile(r'(<a\b[^>]*?)\s(?:xlink:)?href="([^"]*)"')
_EMBEDDED = re.compile(r'":"((?:\.\./)?(?:pages/)?[\w-]+\.html)"')
_LOADED = re.compile(r'\ssrc="([^"]+)"')


def without_dead_links(text: str, page: Path, kept: set[Path]) -> str:
    """The text of a page in which only links to `kept` pages, to anchors and to the web remain links."""

    def leads_somewhere(link: str) -> bool:
        parts = urlsplit(link)
        return bool(parts.scheme or not parts.path) or (page.parent / parts.path).resolve() in kept

    text = _HREF.sub(lambda found: found[0] if leads_somewhere(found[2]) else found[1], text)
    return _EMBEDDED.sub(lambda found: found[0] if leads_somewhere(found[1]) else '":""', text)


def copy_pages(run: Path, folder: Path, patterns: tuple[str, ...]) -> None:
    """Copy pages of a report, and the images they load."""
    run = run.resolve()
    pages = [page for pattern in patterns for page in sorted(run.glob(pattern))]
    if not pages:
        raise SystemExit(f"{run}: holds no report; finish the run first (heatlas report {run})")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        copy = folder / page.relative_to(run)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(without_dead_links(text, page, set(pages)), encoding="utf-8")
        for image in _LOADED.findall(text):
            if not urlsplit(image).scheme:
                target = copy.parent / image
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(page.parent / image, target)


def photograph(pictures: dict[str, Shot]) -> Iterator[tuple[str, str, str]]:
    """Write each picture; its name, page and the digest of the page, in turn."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise SystemExit("no Chromium: install chromium, which takes the pictures")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, shot in pictures.items():
            page = browser.new_page(viewport={"width": 1400, "height": shot.height}, color_scheme="light")
            page.goto((SAMPLE / shot.page).as_uri())
            page.evaluate(ALL_IMAGES)
            page.wait_for_timeout(2000)  # the viewer unpacks its volumes
            target = page.locator(shot.element).first if shot.element else page
            target.screenshot(path=IMAGES / name)
            page.close()
            yield name, shot.page, digest(SAMPLE / shot.page)
        browser.close()


def digest(page: Path) -> str:
    """SHA-256 of a page."""
    return hashlib.sha256(page.read_bytes()).hexdigest()


def main(demo: Path, patients: Path) -> None:
    """Make both sample reports anew, then the pictures."""
    if list(patients.glob("sub-*.html")):
        raise SystemExit(f'{patients}: shows single people; add "[report]" with "people = false" to its settings')
    shutil.rmtree(SAMPLE, ignore_errors=True)
    for (folder, patterns), run in zip(PAGES.items(), (demo, patients), strict=True):
        copy_pages(run, SAMPLE / folder, patterns)
    with (IMAGES / "pictures.tsv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator=os.linesep)
        table.writerow(["picture", "page", "sha256"])
        table.writerows(photograph(PICTURES))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
