"""Pages: which there are, how they link to one another, what moves on them, and the frame that all have.

All pages of the list of chapters are written for every run, so that the menu of each page is the same and no line of it
leads nowhere. A page of which no section applies to the run says so. ``report.html`` and one page per participant lie
in the run folder; one page per bilateral group lies in ``pages``. File names are made here and nowhere else: any text
may be the name of a participant or a region.

A page contains everything it shows. A component is an interactive part with markup, styles, scripts and data, made by a
function of the run. A page inlines the styles and scripts of its components once each, however often they occur, and
its content security policy names the digest of every script: what is not one of them cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from heatlas.pipeline.run.plain_text import plain
from heatlas.reports.words.numbers import number
from heatlas.reports.words.wording import linked


@dataclass(frozen=True)
class Chapter:
    """A page of the report; every section names its own."""

    file: str  # in the run folder, beside the pages of participants, so that links of a section are the same anywhere
    title: str
    topic: str  # of the menu; pages of one topic follow each other


SUMMARY = Chapter("report.html", "Summary", "Summary")
PERFORMANCE = Chapter("report-performance.html", "How good is the prediction?", "Statistics")
MAPS = Chapter("report-maps.html", "Where does it look?", "Statistics")
REGIONS = Chapter("report-regions.html", "Which regions?", "Statistics")
CLINICAL = Chapter("report-clinical.html", "Does it follow the disease?", "Statistics")
FAIRNESS = Chapter("report-fairness.html", "Age, sex, site and subgroups", "Statistics")
COHORT = Chapter("report-cohort.html", "Participants and scans", "Quality")
REGISTRATION = Chapter("report-registration.html", "Registration", "Quality")
TRAINING = Chapter("report-training.html", "Training and heatmaps", "Quality")
METHODS = Chapter("report-methods.html", "Methods", "Methods")
EVALUATION = Chapter("report-evaluation.html", "Evaluation", "Evaluation")
PROVENANCE = Chapter("report-provenance.html", "Provenance", "Provenance")

CHAPTERS: Sequence[Chapter] = (
    SUMMARY, PERFORMANCE, MAPS, REGIONS, CLINICAL, FAIRNESS, COHORT, REGISTRATION, TRAINING, METHODS, EVALUATION,
    PROVENANCE,
)  # fmt: skip
"""All pages, in the order of the menu."""
INDEX = SUMMARY.file
PARTICIPANTS = f"{INDEX}#participants"


def menu(index: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Topics of the menu, each with the titles and addresses of its pages, seen from the page with this `index`.

    `index`: address of the index from the page; empty on the index itself.

    Examples
    --------
    >>> menu("../report.html")[0]
    ('Summary', [('Summary', '../report.html')])
    """
    up = index.removesuffix(INDEX)
    topics = [
        (topic, [(one.title, up + one.file) for one in pages])
        for topic, pages in groupby(CHAPTERS, key=lambda one: one.topic)
    ]
    return [topics[0], ("Participants", [("Participants", f"{up}{PARTICIPANTS}")]), *topics[1:]]


def anchors_of(html: str) -> set[str]:
    """Anchors of a page or a part of one. Text of the input cannot hold a quotation mark, since templates escape it."""
    return set(re.findall(r'\sid="([^"]+)"', html))


def with_addresses(html: str, files: Mapping[str, str]) -> str:
    """A page whose links to anchors of other pages lead there; `files`: the page of each anchor.

    Examples
    --------
    >>> with_addresses('<p id="a"><a href="#a"> <a href="#b">', {"a": "one.html", "b": "two.html"})
    '<p id="a"><a href="#a"> <a href="two.html#b">'
    """
    here = anchors_of(html)

    def addressed(link: re.Match[str]) -> str:
        file = "" if link[1] in here else files.get(link[1], "")
        return f'href="{file}#{link[1]}"'

    return re.sub(r'href="#([^"]*)"', addressed, html)


PAGES = "pages"
LONGEST = 80  # characters of a file name that come from a name


def region_files(groups: Iterable[str]) -> dict[str, str]:
    """File of each bilateral group's page, relative to the run folder; no two alike, whatever their names.

    Examples
    --------
    >>> region_files(["Hippocampus", "Amygdala"])["Hippocampus"]
    'pages/region-hippocampus.html'
    >>> sorted(region_files(["A b", "a-b"]).values())
    ['pages/region-a-b-a760b0e1.html', 'pages/region-a-b-d44362d6.html']
    """
    names = list(dict.fromkeys(groups))
    stems = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:LONGEST] for name in names]
    shared = {stem for stem in stems if stems.count(stem) > 1 or not stem}
    return {
        name: f"{PAGES}/region-{_with_digest(stem, name) if stem in shared else stem}.html"
        for name, stem in zip(names, stems, strict=True)
    }


def participant_file(participant_id: str) -> str:
    """File of a participant's page, relative to the run folder.

    Examples
    --------
    >>> participant_file("sub-ADNI002S0295")
    'sub-ADNI002S0295.html'
    >>> participant_file("sub-<b>/1")
    'sub-b-1-c99de82f.html'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", participant_id.removeprefix("sub-")).strip("-")[:LONGEST]
    return f"sub-{plain if f'sub-{plain}' == participant_id else _with_digest(plain, participant_id)}.html"


def _with_digest(stem: str, name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{stem}-{digest}" if stem else digest


@dataclass(frozen=True)
class Links:
    """Addresses of the pages there are, as seen from one page."""

    regions: dict[str, str]  # files relative to the run folder, by bilateral group and by participant
    people: dict[str, str]
    up: str = ""  # from the page to the run folder: empty, or ``../`` for a page in a folder

    @property
    def index(self) -> str:
        return f"{self.up}report.html"

    def region(self, group: object) -> str | None:
        """Address of a bilateral group's page; None where there is none."""
        return self._to(self.regions.get(str(group)))

    def participant(self, participant_id: object) -> str | None:
        """Address of a participant's page; None where there is none."""
        return self._to(self.people.get(str(participant_id)))

    def _to(self, file: str | None) -> str | None:
        return None if file is None else self.up + quote(file)

    def seen_from(self, folder: str) -> Links:
        """The same pages, seen from a page in a folder of the run."""
        return Links(self.regions, self.people, "../" * len([part for part in folder.split("/") if part]))


@dataclass(frozen=True)
class Component:
    """One interactive part of a page."""

    # The fragment. Made by a template with escaping on, so that text of the input is text on the page. A component
    # works, if plainly, without scripts; controls that need them start ``hidden``
    html: Markup
    css: str = ""  # style sheet. Rules are under a class of the component, so that they touch nothing else
    # Scripts, run in this order at the end of the page. Each finds its own elements and may be on a page that has
    # several of them. A component without elements of its own, such as a library, may be a script alone
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageAssets:
    """Styles and scripts of one page, each once, and the policy that allows just these."""

    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    @classmethod
    def of(cls, base_css: str, base_scripts: Sequence[str], components: Iterable[Component]) -> PageAssets:
        """Collect the page's own styles and scripts and those of its components."""
        styles, scripts = dict.fromkeys([base_css]), dict.fromkeys(base_scripts)
        for component in components:
            styles.update(dict.fromkeys([component.css] * bool(component.css)))
            scripts.update(dict.fromkeys(component.scripts))
        return cls(tuple(styles), tuple(scripts))

    @property
    def policy(self) -> str:
        """Content security policy: nothing from elsewhere, pictures inlined or files of the run, only these scripts.

        A page without scripts allows none.
        """
        digests = " ".join(f"'sha256-{script_digest(script)}'" for script in self.scripts) or "'none'"
        return (
            "default-src 'none'; img-src 'self' file: data: blob:; style-src 'unsafe-inline'; "
            f"script-src {digests}; base-uri 'none'; form-action 'none'"
        )


def script_digest(script: str) -> str:
    """SHA-256 of an inlined script, as a policy writes it.

    Examples
    --------
    >>> script_digest("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded_json(value: object) -> Markup:
    r"""Data as JSON for a ``<script type="application/json">``; no text in it can end the element.

    Examples
    --------
    >>> embedded_json({"site": "</script>"})
    Markup('{"site":"\\u003c/script\\u003e"}')
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True)
class NavigationEntry:
    """One line of a page's contents: an anchor of the page or another page."""

    title: str
    link: str
    missing: bool = False


@dataclass(frozen=True)
class Frame:
    """What surrounds the content of every page."""

    title: str  # of the document
    navigation: Sequence[NavigationEntry]
    components: Sequence[Component] = ()  # interactive parts on the page
    index: str = ""  # address of the report, from a page of it; empty on the report itself
    file: str = ""  # of a page of the menu, which marks it there
    within: str = ""  # address of the page of the menu that leads here, which the menu marks instead
    of_a_run: bool = True  # whether it belongs to the report of a run, with its menu

    @property
    def cited(self) -> str:
        """Address of how to cite the program and the run."""
        return f"{self.index.removesuffix(INDEX)}{PROVENANCE.file}#credits"

    @property
    def menu(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Topics and their pages, the same on every page of a run."""
        return menu(self.index) if self.of_a_run else []

    @property
    def assets(self) -> PageAssets:
        return PageAssets.of(template_text("report.css"), [template_text("report.js")], self.components)


def render(template: str, frame: Frame, **content: Any) -> str:
    """A page from a template that extends ``base.html.j2``; control characters from an input are spelt out."""
    return plain(_environment().get_template(template).render(frame=frame, assets=frame.assets, **content))


def render_part(template: str, **content: Any) -> Markup:
    """A part of a page from its template."""
    return Markup(_environment().get_template(template).render(**content))


def template_files() -> Iterable[Path]:
    """All templates, style sheets and scripts."""
    return (path for path in TEMPLATES.rglob("*") if path.is_file())


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["glossed"] = linked
    environment.filters["in_two"] = in_two
    environment.filters["grouped"] = number
    environment.globals["version"] = _version()
    return environment


def in_two(text: str) -> tuple[str, str]:
    """The first sentence of a text, and the rest, which a page may fold.

    Examples
    --------
    >>> in_two("No region differs (p = 0.4; cf. table). By ranks, one does. It is small.")
    ('No region differs (p = 0.4; cf. table).', 'By ranks, one does. It is small.')
    """
    first, *rest = re.split(r"(?<=[.?!]) (?=[A-Z])", text.strip(), maxsplit=1)
    return first, "".join(rest)


def _version() -> str:
    """Version of the program; empty where it is not installed."""
    try:
        return metadata.version("heatlas")
    except metadata.PackageNotFoundError:
        return ""


@cache
def template_text(name: str) -> str:
    """A style sheet or script as it is."""
    return (TEMPLATES / name).read_text(encoding="utf-8")
