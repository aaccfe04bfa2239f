"""Does it use shortcuts? Relevance in places that should not matter, and the site read from relevance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.audit import NO_REGION
from heatlas.reports.questions.question import CLEAR, Caution, Check, Question, Verdict
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, is_missing, listing, number, p_value, percent, sentence_case
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import worded

WORDS = Words(__file__)

MARGIN = 1.1  # smallest enrichment that is mentioned, if its interval, where it has one, lies above 1
UNCOVERED = 1 / 3  # share of |relevance| in no region above which the report warns


@dataclass(frozen=True)
class Audit:
    """Relevance by place, voxels of no region among them, and predictions of the site, of all maps."""

    places: pd.DataFrame
    predicted: pd.DataFrame
    main_maps: tuple[str, ...]

    @property
    def leading_map(self) -> str:
        return self.main_maps[0]


def facts(run: RunRecord) -> Audit:
    places, predicted = (run.tables.get(name, pd.DataFrame()) for name in ("shortcuts", "site_prediction"))
    return Audit(places, predicted, run.main_maps)


def gathered(places: pd.DataFrame) -> pd.DataFrame:
    """Rows of `shortcuts.tsv` with clearly more relevance than an even spread would give, of places in doubt.

    The interval lies above 1; where there is none, as with the same enrichment in all people, the estimate does.
    """
    places = places[places["compartment"] != NO_REGION]
    lower = places["ci_low"].fillna(places["enrichment"])
    return places[(lower > 1) & (places["enrichment"] > MARGIN)]


def _answer(audit: Audit) -> Verdict | None:
    """Whether the leading map gathers in places that should not matter, and whether it predicts the site."""
    parts = [part for part in (_places(audit), _predictions(audit)) if part is not None]
    if not parts:
        return None
    return Verdict(" ".join(part.answer for part in parts), " ".join(part.grounds for part in parts))


def _places(audit: Audit) -> Verdict | None:
    rows = audit.places
    if len(rows):
        rows = rows[(rows["map"] == audit.leading_map) & (rows["compartment"] != NO_REGION)]
    if rows.empty:
        return None
    known = rows[rows["ci_low"].notna()]
    high = gathered(rows).sort_values("enrichment", ascending=False)
    if len(high):
        answer = (
            f"Possibly: there is more relevance than expected in {listing(list(map(worded, high['compartment'])))}."
        )
    else:
        answer = ("No place is shown to hold more relevance than expected." if len(known) else
                  "Whether relevance gathers in some places could not be tested.")  # fmt: skip
    said = [WORDS.say("place", compartment=worded(row['compartment']), row=row, bounds=_bounds(row))
            for row in high.to_dict("records")]  # fmt: skip
    none = f"none above {fixed(MARGIN, 1)} with its interval above 1, of {count(len(known), 'place')}"
    return Verdict(
        answer,
        WORDS.say("places", audit=audit, places=listing(said) or none),
    )


def _bounds(row: Mapping[Hashable, Any]) -> str:
    if is_missing(row["ci_low"]):
        return "no interval"
    return f"{fixed(row['ci_low'], 1)} to {fixed(row['ci_high'], 1)}"


def _predictions(audit: Audit) -> Verdict | None:
    rows = audit.predicted
    if len(rows):
        rows = rows[(rows["map"] == audit.leading_map) & rows["p_fwe"].notna()]
    if rows.empty:
        return None
    clear = rows[rows["p_fwe"] < CLEAR]
    targets = sentence_case(listing([worded(target) for target in (clear if len(clear) else rows)["target"]]))
    answer = (
        f"{targets} can be predicted from the map." if len(clear) else
        f"{targets} could not be predicted from the map better than by chance."
    )  # fmt: skip
    others = audit.predicted[(audit.predicted["map"] != audit.leading_map) & (audit.predicted["p_fwe"] < CLEAR)]
    if len(others):
        from_others = [
            f"{worded(row['target'])} from {map_title(row['map'])} (family-wise corrected {p_value(row['p_fwe'])})"
            for row in others.to_dict("records")
        ]
        answer += f" From other maps: {listing(from_others)}."
    said = [WORDS.say("prediction", target=worded(row["target"]), row=row) for row in rows.to_dict("records")]
    return Verdict(answer, f"Predicted out of fold from {map_title(audit.leading_map)}: {'; '.join(said)}.")


def _readable_site(audit: Audit) -> Caution | None:
    """Site or scanner that can be predicted from relevance.

    The p is corrected over the maps of one target. The caution is serious if it concerns the leading map.
    """
    tested = audit.predicted[audit.predicted["p_fwe"].notna()]
    significant = tested[tested["p_fwe"] < CLEAR].sort_values("p_fwe")
    if significant.empty:
        return None
    leading = tested[tested["map"] == audit.leading_map]
    passing = [_predicted(row, with_map=True) for row in significant.head(3).to_dict("records")]
    more = f" and {number(len(significant) - 3)} more" if len(significant) > 3 else ""
    tells = leading[leading["p_fwe"] < CLEAR]
    clearest = f" of {map_title(str(significant['map'].iloc[0]))}"
    concerned, which = (tells, "") if len(tells) else (significant.head(1), clearest)
    scanner = listing([str(target).replace("_", " ") for target in dict.fromkeys(concerned["target"])])
    targets = listing([str(target).replace("_", " ") for target in dict.fromkeys(tested["target"])])
    title = map_title(audit.leading_map)
    predicted = listing([_predicted(row, with_map=False) for row in leading.to_dict("records")]) or "not tested"
    predicted = (
        f"The leading map, {title}: {predicted}."
        if len(tells) or leading.empty
        else f"From the leading map, {title}, prediction was no better than chance."
    )
    looks = "What looks" if len(tells) else "In the other map, what looks"
    return Caution.read(
        WORDS,
        "readable-site",
        level="serious" if len(tells) else "note",
        scanner=scanner,
        which=which,
        predictions=len(tested),
        targets=targets,
        significant=len(significant),
        passing=passing,
        more=more,
        predicted=predicted,
        looks=looks,
    )


def _predicted(row: Mapping[Hashable, Any], with_map: bool) -> str:
    """How well a site or scanner is predicted from a map."""
    source = f" from {map_title(str(row['map']))}" if with_map else ""
    return WORDS.say("predicted", replace=str(row["target"]).replace("_", " "), source=source, row=row)


def _in_no_region(audit: Audit) -> Caution | None:
    """Relevance inside the brain that lies in no region of the atlas."""
    rows = audit.places
    uncovered = rows[
        (rows["compartment"] == NO_REGION) & rows["map"].isin(audit.main_maps) & (rows["share"] > UNCOVERED)
    ]
    if uncovered.empty:
        return None
    shares = [f"{percent(row['share'], 0)} in {map_title(row['map'])}" for row in uncovered.to_dict("records")]
    voxels = percent(uncovered["voxel_share"].iloc[0], 0)
    return Caution.read(WORDS, "in-no-region", shares=shares, voxels=voxels)


def _gathered_outside(audit: Audit) -> Caution | None:
    """More relevance than its share at the rim of the mask, outside the brain, or in fluid."""
    rows = gathered(audit.places[audit.places["map"].isin(audit.main_maps)])
    if rows.empty:
        return None

    def said(name: str) -> str:
        of_map = rows[rows["map"] == name].sort_values("enrichment", ascending=False).to_dict("records")
        return listing(
            [f"{worded(row['compartment'])} ({fixed(row['enrichment'], 1)} times its share)" for row in of_map]
        )

    headline, *others = audit.main_maps
    beside = [f"{map_title(name)}: {said(name)}" for name in others if said(name)]
    more = f" In other maps: {'; '.join(beside)}." if beside else ""
    return Caution.read(
        WORDS, "gathered-outside", headline=headline, first=said(headline) or "nothing notable", more=more
    )


def _methods(audit: Audit) -> str:
    parts, rows = [], audit.places
    places = [worded(name) for name in dict.fromkeys(rows.loc[rows["enrichment"].notna(), "compartment"])
              ] if len(rows) else []  # fmt: skip
    if places:
        parts.append(WORDS.say("methods_places", places=places))
    if len(audit.predicted):
        parts.append("Site and field strength were predicted from regional relevance, out of fold by participant.")
    return " ".join(parts)


SHORTCUTS = Question.read(
    WORDS,
    "shortcuts",
    facts=facts,
    answer=_answer,
    cautions=(
        Check("site", _readable_site, ("site_prediction",)),
        Check("no-region", _in_no_region, ("shortcuts",)),
        Check("gathered", _gathered_outside, ("shortcuts",)),
    ),
    methods=_methods,
)
