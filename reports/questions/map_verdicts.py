"""Whether a map can be trusted: what the evaluation (``heatlas evaluate``, ``verdicts.tsv``) says of it."""

from __future__ import annotations

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.questions.question import Verdict
from heatlas.reports.questions.rows import rows_where
from heatlas.reports.read.run_record import RunRecord, has_passed
from heatlas.reports.words.numbers import listing, sentence_case

NOT_EVALUATED = "Null and faithfulness checks of the maps have not been run yet (heatlas evaluate)."
COHORTS = {"run": "scans of the run", "planted": "copies of its controls with planted loss"}
"""What the maps were judged on, by the name of the cohort in the tables."""
_NULLS = {
    "uniform": "Even everywhere (no network)",
    "random": "Random (no network)",
    "fakeCamImage": "Fake-CAM (no network)",
    "edges": "Edge detector (no network)",
    "scanDifference": "|scan − mean control| (no network)",
}


def title_of(name: object) -> str:
    """Name of a map, or of an image that needs no network, as a reader sees it.

    Examples
    --------
    >>> title_of("edges"), title_of("lrpB000")
    ('Edge detector (no network)', 'LRP β=0')
    """
    return _NULLS.get(str(name)) or map_title(str(name))


def lines_on(run: RunRecord, name: str) -> list[str]:
    """The verdict line on a map for each cohort that it was judged on."""
    rows = rows_where(run, "verdicts", map=name)
    several = len(rows) > 1
    return [
        f"{COHORTS.get(row['cohort'], row['cohort']) + ': ' if several else ''}{row['verdict']}"
        for row in rows.to_dict("records")
    ]


def _passed_in_words(run: RunRecord, name: str) -> str:
    answer = has_passed(run.tables["verdicts"], name)
    if answer is None:
        return "has neither passed nor failed, since not everything could be asked"
    return "passed" if answer else "did not pass"


def evaluated(run: RunRecord, name: str) -> str:
    """What the evaluation found about the leading map, to end the headline; empty where there was none."""
    if not run.has("verdicts"):
        return ""
    lines = lines_on(run, name)
    if not lines:
        return f" The evaluation of this run did not cover {map_title(name)}."
    if has_passed(run.tables["verdicts"], name) is False:
        return " This map did not pass the evaluation of this run; the warnings say why."
    return f" In the evaluation of this run, this map {_passed_in_words(run, name)}: {'. '.join(lines)}."


def bench_sentence(run: RunRecord, name: str) -> str:
    """What the evaluation found about a map, in two sentences; in one, that it did not look at it."""
    if not run.has("verdicts"):
        return run.why_absent("verdicts", otherwise=NOT_EVALUATED)
    lines = lines_on(run, name)
    if not lines:
        return f"The evaluation of this run did not cover {map_title(name)}."
    return (
        f"In the evaluation of this run, {map_title(name)} {_passed_in_words(run, name)}. "
        f"{sentence_case('; '.join(lines))}."
    )


def evaluation(run: RunRecord) -> Verdict:
    """Which maps passed, and whether the leading one is among them."""
    names = list(dict.fromkeys(run.tables["verdicts"]["map"]))
    passed = [title_of(name) for name in names if has_passed(run.tables["verdicts"], name)]
    answer = f"Passed: {listing(passed)}." if passed else "No map passed."
    lead = run.leading_map
    return Verdict(
        answer,
        f"The report leads with {map_title(lead)}, which {_passed_in_words(run, lead)}."
        if lead in names
        else f"The report leads with {map_title(lead)}, which was not evaluated.",
    )
