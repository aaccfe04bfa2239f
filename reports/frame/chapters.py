"""The pages of a report, its menu, and how links between pages are found.

All pages of this list are written for every run, so that the menu of each page is the same and no line of it leads
nowhere. A page of which no section applies to the run says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby


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
    own = anchors_of(html)

    def addressed(link: re.Match[str]) -> str:
        file = "" if link[1] in own else files.get(link[1], "")
        return f'href="{file}#{link[1]}"'

    return re.sub(r'href="#([^"]*)"', addressed, html)
