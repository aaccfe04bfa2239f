"""The one file about one scan: answer, place among controls, picture, regions, limits; two pages on paper.

It holds everything that it shows and no name, so that it can be sent or printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.models.named_networks import CARRIED
from heatlas.reports.figures.gallery import Picture, inlined, png, shown_in
from heatlas.reports.figures.portraits import MAPS, first_map
from heatlas.reports.figures.slices import SMOOTHED_MM
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import Frame, render
from heatlas.reports.people.likeness import WORDS as OF_LIKENESS
from heatlas.reports.people.likeness import likeness_chart, why_unlike
from heatlas.reports.people.planted import planted_in
from heatlas.reports.people.regions import EvidenceParts, evidence_parts
from heatlas.reports.questions.predictions import APPLIED, learned_elsewhere
from heatlas.reports.read.people import ParticipantRecords, likeness_of
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, mid_sentence, sentence_case, signed
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)
SCAN_REPORT = "scan_report.html"


def scan_report(material: Material) -> str | None:
    """The file about one scan, as HTML with everything inside; None where there are several, or no prediction."""
    run = material.run
    table = next((run.tables[name] for name in APPLIED.headline.tables if run.has(name)), None)  # type: ignore[union-attr]
    if not run.without_labels or table is None or len(table) != 1:
        return None
    visits = ParticipantRecords(run).visits
    visits = visits[visits["scan_id"].isin(table["scan_id"])]
    if len(visits) != 1:
        return None
    row = visits.iloc[0].to_dict()
    scan, networks = str(row["scan_id"]), Path(run.config.training.networks_of)
    rows, parts = likeness_of(run, [scan]), evidence_parts(run, scan)
    return render(
        "scan_report.html.j2", Frame("One scan", [], of_a_run=False), networks=count(len(run.models), "network"),
        name=networks.name if networks.resolve().parent == CARRIED.resolve() else "", withheld=why_unlike(run, [scan]),
        answer=APPLIED.headline.answer(run) if APPLIED.headline else None, planted=planted_in(run, [scan]),
        chart=likeness_chart(rows), caption=OF_LIKENESS.say("chart_caption"), picture=_picture(material, row),
        parts=None if parts is None else lines_of(run, parts), learned=learned_elsewhere(run),
        probability=bool(run.task.classes), positive=run.positive,
    )  # fmt: skip


def _picture(material: Material, row: Mapping[Any, Any]) -> Picture | None:
    """The leading map on six slices of the person's own brain."""
    content = material.picture(material.run.files_of(row).portrait)
    if content is None:
        return None
    title, sheet = map_title((shown_in(content, MAPS) or material.run.main_maps)[0]), first_map(content)
    caption = WORDS.say("picture", title=title, words=material.run.task.words, SMOOTHED_MM=SMOOTHED_MM)
    return Picture("", inlined(png(sheet), "png"), f"{title} on slices of the scan.", caption, sheet.width,
                   height=sheet.height)  # fmt: skip


def lines_of(run: RunRecord, parts: EvidenceParts) -> Mapping[str, Any]:
    """A table of the parts of a scan's evidence: heading, unit, and a line for each with its bar."""
    words = run.task.words
    largest = max(map(abs, (*parts.pro.values(), *parts.contra.values(), parts.rest)), default=0.0) or 1.0

    def line(name: str, part: float) -> Mapping[str, Any]:
        return {"name": name, "part": signed(part), "share": round(50 * abs(part) / largest, 1), "pro": part > 0}

    blocks = [
        (sentence_case(title), [line(name, part) for name, part in of_sign.items()])
        for title, of_sign in ((words.supports, parts.pro), (words.opposes, parts.contra))
        if of_sign
    ]
    rest = WORDS.say("rest", error=parts.error) if abs(parts.error) >= 0.005 else WORDS.say("all_else")
    return {
        "lead": WORDS.say("lead", evidence=mid_sentence(words.evidence), n=parts.n),
        "unit": run.evidence_unit,
        "blocks": [*blocks, ("", [line(rest, parts.rest)])],
        "sums": [
            (WORDS.say("above"), signed(parts.above)),
            (WORDS.say("controls", n=parts.n), signed(parts.controls)),
            (WORDS.say("evidence", words=words), signed(parts.evidence)),
        ],
    }
