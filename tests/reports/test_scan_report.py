"""The file about one scan: its parts add up, it names nobody, and it takes two pages of paper."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from heatlas.pipeline.cohort.people.tasks import Words as TaskWords
from heatlas.pipeline.registration.quality.likeness import LIKENESS
from heatlas.reports.figures.gallery import Picture, inlined
from heatlas.reports.frame.pages import Frame, render
from heatlas.reports.people import regions
from heatlas.reports.people.likeness import WORDS as OF_LIKENESS
from heatlas.reports.people.likeness import likeness_chart
from heatlas.reports.people.planted import Badge
from heatlas.reports.people.regions import EvidenceParts, ScanRegions, evidence_parts
from heatlas.reports.people.scan_report import lines_of
from heatlas.reports.questions.question import Answer

TASK = SimpleNamespace(
    words=TaskWords("AD", "evidence for AD", "speaks for AD", "speaks against AD", "logits", "a control (CN)", "c")
)
LONG = "Cerebral white matter and everything that lies around it"
PARTS = EvidenceParts(
    {f"{LONG} {n}": 0.9 - 0.1 * n for n in range(5)}, {f"{LONG} {n}": 0.1 * n - 0.8 for n in range(5)},
    -0.37, 0.02, 0.63, -1.5, 30,
)  # fmt: skip
SENTENCE = "A sentence that says how the networks got to what they say, and what it is to be compared with. "
PAPERS = {"A4": (595, 842), "Letter": (612, 792)}
UNLIKE = "This scan is unlike those that the networks learned from. " + ". ".join(
    f"{OF_LIKENESS.all['short'][one.column]}: {OF_LIKENESS.all['may_be'][one.column]} (7.9 robust SD from 12 controls)"
    for one in LIKENESS
)


def page(withheld: str = "") -> str:
    """The fullest page there can be."""
    rows = pd.DataFrame([
        {"measure": one.column, "value": 1.0, "median": 0.5, "distance": 4.5, "verdict": "alike"} for one in LIKENESS
    ])  # fmt: skip
    noise = np.random.default_rng(0).integers(0, 255, (400, 522), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    picture = Picture("", inlined(buffer.getvalue(), "png"), "A map.", SENTENCE * 3, 522, height=400)
    run: Any = SimpleNamespace(task=TASK, evidence_unit="logits")
    return render(
        "scan_report.html.j2", Frame("One scan", [], of_a_run=False), networks="20 networks", name="oasis1-ad",
        withheld=withheld, answer=Answer(f"It is 0.9. {SENTENCE * 3}", "0.9", "probability"),
        planted=SimpleNamespace(badges=[Badge(f"{LONG}: followed.", SENTENCE * 4, True)] * 2, rule=SENTENCE * 3),
        chart=likeness_chart(rows), caption=OF_LIKENESS.say("chart_caption"),
        picture=picture, parts=lines_of(run, PARTS), learned=SENTENCE * 3, probability=True, positive="AD",
    )  # fmt: skip


@pytest.mark.parametrize("folded", [True, False])
def test_the_answer_is_folded_under_the_reason_only_where_the_scan_is_unlike(folded: bool) -> None:
    html = page(UNLIKE if folded else "")
    before = html[: html.index("It is 0.9.")]
    assert ('role="alert"' in before, '<details class="withheld">' in before) == (folded, folded)
    shown = re.sub(r'<details class="withheld">.*?</details>', "", html, flags=re.DOTALL)
    for said in ("It is 0.9.", "A map.", LONG, 'id="badge-title"'):
        assert (said in shown) == (not folded)
    assert "Research only; no diagnosis." in before
    assert "http" not in html.split("<main")[1].split("<footer")[0].replace("http://www.w3.org/2000/svg", "")


def _run(values: dict[str, float], evidence: float, controls: float, error: float) -> Any:
    row = {"map": "deeplift", "scan_id": "I1", "evidence": evidence, "reference_evidence": controls, "n_reference": 12,
           "completeness_error": error}  # fmt: skip
    table = pd.DataFrame([row, {**row, "map": "lrpB000", "evidence": 99.0}])
    run = SimpleNamespace(
        has=lambda name: name == "evidence_applied", tables={"evidence_applied": table}, leads_with_evidence=True,
        leading_map="deeplift", task=TASK, evidence_unit="logits", values=values,
    )  # fmt: skip
    return run


def test_the_parts_add_up_to_the_evidence_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    values = {f"R{n}": value for n, value in enumerate(rng.normal(0, 0.1, 40))}
    run = _run(values, 1.2349, -0.5551, 0.004)
    monkeypatch.setattr(regions, "regions_of_scans", lambda run: {"I1": ScanRegions(pd.Series(run.values), ())})
    found = evidence_parts(run, "I1")
    assert found is not None
    ranked = sorted(values, key=values.__getitem__)
    assert (list(found.pro), list(found.contra)) == (ranked[::-1][:5], ranked[:5])
    assert found.evidence == pytest.approx(1.23)
    assert found.above == pytest.approx(1.23 + 0.56)
    table = lines_of(run, found)
    written = [line["part"] for _, lines in table["blocks"] for line in lines]
    sums = [value for _, value in table["sums"]]
    as_numbers = [round(100 * float(text.replace("−", "-"))) for text in (*written, *sums)]
    assert sum(as_numbers[:11]) == as_numbers[11]
    assert as_numbers[11] + as_numbers[12] == as_numbers[13] == 123
    assert evidence_parts(run, "I2") is None


@pytest.mark.ci
@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("withheld", ["", UNLIKE], ids=["alike", "unlike"])
def test_it_takes_two_pages_of_paper_at_most(visit: Any, tmp_path: Path, paper: str, withheld: str) -> None:
    path = tmp_path / "scan_report.html"
    path.write_text(page(withheld), encoding="utf-8")
    content = visit(path).pdf(format=paper)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 2
    for box in re.findall(rb"/MediaBox\s*\[([^\]]*)\]", content):
        assert tuple(map(float, box.split()))[2:] == pytest.approx(PAPERS[paper], abs=1)


@pytest.mark.ci
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut(visit: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "scan_report.html"
    path.write_text(page(UNLIKE), encoding="utf-8")
    opened = visit(path, 400, color_scheme=scheme)
    assert not opened.locator("text=It is 0.9.").is_visible()
    opened.click(".withheld summary >> nth=0")
    assert opened.locator("text=It is 0.9.").is_visible()
    opened.evaluate("document.querySelectorAll('details').forEach((one) => one.open = true)")
    assert opened.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    wide = "one => one.scrollWidth > one.clientWidth + 1"
    assert opened.evaluate(f"[...document.querySelectorAll('main *:not(svg *, .hidden)')].filter({wide}).length") == 0
