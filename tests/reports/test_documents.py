"""Links of the documentation lead to files and headings that there are, and every page is in the navigation."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them, and anchors written by hand."""
    text = page.read_text(encoding="utf-8")
    headings = (re.sub(r"[^\w\- ]", "", line.lower()).strip() for line in re.findall(r"^#+ (.*)$", text, re.M))
    return {heading.replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_of_the_site_is_in_the_navigation_once() -> None:
    docs = ROOT / "docs"
    trees = re.findall(r"```{toctree}\n.*?\n\n(.*?)```", (docs / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    pages = [
        page.relative_to(docs).with_suffix("").as_posix()
        for page in docs.rglob("*")
        if page.suffix == ".md" and page.name != "index.md" and "_build" not in page.parts
    ]
    assert sorted(" ".join(trees).split()) == sorted([*pages, "auto_examples/index"])


def test_the_check_of_the_site_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="other.html#here">1</a><a href="other.html#gone">2</a><a href="lost.html">3</a><a href="https://x.org">4</a>'
        '<script src="https://x.org/a.js"></script><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1><a href="#here">up</a>')
    check = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "check_site.py")
    module = importlib.util.module_from_spec(check)
    check.loader.exec_module(module)
    assert module.faults(tmp_path) == [
        "page.html: loads https://x.org/a.js",
        "page.html: no anchor other.html#gone",
        "page.html: no file lost.html",
    ]


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the packages of `make docs` are not installed")
    site = str(tmp_path / "html")
    for command in (["-m", "sphinx", "-q", "-E", "-W", "--keep-going", "docs", site], ["docs/check_site.py", site]):
        answer = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
