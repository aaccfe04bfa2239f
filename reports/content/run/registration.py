"""How well the scans lie on the template: the numbers of every scan, the doubtful ones by eye, and a chart of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.registration.quality.doubt import MIRRORED, MIRRORED_REASON, NOT_KNOWN
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT
from heatlas.reports.figures.gallery import BLUE, INK, VERMILION, Picture, new_figure
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.overviews import FLICKER
from heatlas.reports.frame.tables import page_table, worded_columns
from heatlas.reports.questions.question import ANY_TASK, Caution, Check, Question
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import LONGEST_TEXT, count, fixed, number, percent, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)

_COLUMNS = worded_columns(WORDS, "columns")
_SUMMARY = ("correlation", "dice", "min_jacobian")
SHOWN = 6  # doubtful scans whose overview is on the page; the others are linked


def build(material: Material) -> Mapping[str, Any]:
    """Medians, a small plot and the table, worst scans first."""
    quality = material.run.tables["registration"].copy()
    good = registered(material.run)
    outlying = outlying_scans(good)
    quality["look"] = quality.index.isin(good.index[outlying]) | (quality["status"] != "registered")
    ordered = quality.sort_values(["look", "correlation"], ascending=[False, True])
    paths = [material.run.files_of(row).overview for row in ordered.to_dict("records")]
    addresses = [material.address(path) if path.is_file() else None for path in paths]
    ordered = ordered.assign(
        brain_ml=ordered["brain_mm3"].astype(float) / 1000,
        overview=pd.Series(["figure" if address else None for address in addresses], ordered.index, dtype=object),
        overview_url=pd.Series(addresses, ordered.index, dtype=object),
    )
    picture = None
    if len(good):
        picture = material.gallery.add(
            draw_registration(good, outlying, named=material.shows_people),
            "registration_quality",
            f"Overlap and correlation with the template of {count(len(good), 'registered scan')}.",
            WORDS.say("quality_caption", scans=len(good)),
        )
    return {
        "n": len(good),
        "failed": int((quality["status"] != "registered").sum()),
        "outlying": int(outlying.sum()),
        "mirrored": int(mirrored_scans(good).sum()),
        "sides_unknown": sides_unknown(good),
        "compared": len(good) >= MIN_COHORT,
        "rough": percent(rough, 0) if (rough := roughly_extracted(material.run)) else "",
        "mostly": mostly_flagged(material.run),
        "medians": {name: fixed(good[name].median(), 3) for name in _SUMMARY} if len(good) else {},
        "figure": picture,
        **_every_scan(ordered, int(outlying.sum()), material),
    }


def _every_scan(ordered: pd.DataFrame, outlying: int, material: Material) -> Mapping[str, Any]:
    """Pictures of doubtful scans, and the table of all; neither where single people are not shown."""
    if not material.shows_people:
        return {"overviews": [], "hidden": 0, "table": None}
    return {
        "overviews": _overviews(ordered[ordered["flags"].notna()], material),
        "hidden": max(outlying - SHOWN, 0),
        "table": page_table(ordered, _COLUMNS, "Registration of every scan, doubtful scans first.", 500),
    }


def _overviews(doubtful: pd.DataFrame, material: Material) -> list[Picture]:
    """Pictures of the first doubtful scans."""
    pictures: list[Picture] = []
    for row in doubtful.head(SHOWN).to_dict("records"):
        content = material.picture(material.run.files_of(row).overview)
        if content is None:
            continue
        picture = material.gallery.add_png(
            content,
            f"registration_in_doubt_{len(pictures) + 1}",
            f"Nine slices of {shortened(row['participant_id'])} under the contours of the template.",
            WORDS.say("overview_caption", row=row, shortened=shortened(row["flags"], LONGEST_TEXT), FLICKER=FLICKER),
        )
        pictures.append(replace(picture, template=material.template_overview))
    return pictures


def draw_registration(quality: pd.DataFrame, outlying: pd.Series, named: bool = True) -> Figure:
    """Every scan by overlap and correlation with the template brain.

    `quality`: columns ``dice`` and ``correlation``. `outlying`: scans to mark, and to name if `named`.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    good, bad = quality[~outlying], quality[outlying]
    ax.scatter(good["dice"], good["correlation"], s=22, color=BLUE, alpha=0.8, label=f"as expected, n = {len(good)}")
    if len(bad):
        label = f"to be looked at, n = {len(bad)}"
        ax.scatter(bad["dice"], bad["correlation"], s=46, color=VERMILION, marker="X", label=label)
        for row in bad.head(8 if named else 0).itertuples():
            name, place = shortened(row.participant_id, 30), (row.dice, row.correlation)
            ax.annotate(name, place, xytext=(6, 3), textcoords="offset points", fontsize=7, color=INK)
    ax.set_xlabel("Dice overlap of brain masks (scan and template)")
    ax.set_ylabel("correlation with template")
    ax.legend(loc="best")
    return figure


ROUGH = 0.1  # median share of brain masks outside the template's brain, above which extraction is rough
NAMED = 8  # scans named in a warning
MOST = 0.5  # share of flagged scans above which a flag no longer tells one scan from another


def outlying_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that registration has flagged (`pipeline.registration.quality.outliers`)."""
    return quality["flags"].notna()


def registered(run: RunRecord) -> pd.DataFrame:
    """Rows of registration that succeeded."""
    quality = run.tables["registration"]
    return quality[quality["status"] == "registered"]


def mirrored_scans(quality: pd.DataFrame) -> pd.Series:
    """Scans that look mirrored left to right (`pipeline.registration.quality.sides`)."""
    return quality["sides"].astype(str) == MIRRORED


def misplaced_scans(quality: pd.DataFrame) -> pd.Series:
    """Flagged scans with another reason than their sides."""
    others = quality["flags"].map(
        lambda said: [one for one in str(said).split("; ") if not one.startswith(MIRRORED_REASON)]
    )
    return outlying_scans(quality) & others.map(bool)


def sides_unknown(quality: pd.DataFrame) -> str:
    """Why nothing can be said about the sides of the scans; empty if something can, or they were not compared."""
    said = quality["sides"].dropna().astype(str)
    said = said[said.str.startswith(NOT_KNOWN)]
    return said.iloc[0].removeprefix(NOT_KNOWN) if len(said) else ""


def roughly_extracted(run: RunRecord) -> float:
    """Median share of the brain masks outside the template's brain if it is large and not cut off; else 0."""
    if not run.has("registration") or run.config.registration.brain_extraction == "template-mask":
        return 0.0
    share = float(registered(run)["outside_share"].astype(float).median())
    return share if share > ROUGH else 0.0


def mostly_flagged(run: RunRecord) -> bool:
    """Whether most registered scans are flagged: that says more about the limits, or about all, than about each."""
    if not run.has("registration"):
        return False
    good = registered(run)
    return len(good) >= MIN_COHORT and bool(outlying_scans(good).mean() > MOST)


def _registration(run: RunRecord) -> Caution | None:
    good = registered(run)
    bad = good[misplaced_scans(good)]
    if bad.empty:
        return None
    if mostly_flagged(run):
        return _mostly_flagged(len(good), bad)
    dropped = int((bad["decision"] == "drop").sum())
    first = shortened(bad.sort_values("correlation")["participant_id"].iloc[0])
    worst = f", the worst of them {first}" if run.config.report.people else ""
    return Caution.read(
        WORDS,
        "registration",
        level="note" if dropped == len(bad) else "serious",
        bad=len(bad),
        scans=len(good),
        worst=worst,
        dropped=dropped,
        kept=len(bad) - dropped,
    )


def _mirrored(run: RunRecord) -> Caution | None:
    good = registered(run)
    bad = good[mirrored_scans(good)]
    if bad.empty:
        return None
    names = [shortened(name) for name in bad.sort_values("side_score")["participant_id"].astype(str)]
    more = f" and {number(len(names) - NAMED)} more" if len(names) > NAMED else ""
    who = f": {', '.join(names[:NAMED])}{more}" if run.config.report.people else ""
    return Caution.read(
        WORDS,
        "mirrored",
        level="note" if (bad["decision"] == "drop").all() else "serious",
        scans=len(bad),
        bad=len(bad),
        who=who,
    )


def _mostly_flagged(scans: int, bad: pd.DataFrame) -> Caution:
    """Flags that most scans have: no reason to doubt one scan more than another."""
    what = Counter(re.split(r" [\d.]", reason)[0] for flags in bad["flags"] for reason in str(flags).split("; "))
    reason, times = what.most_common(1)[0]
    return Caution.read(WORDS, "mostly-flagged", bad=len(bad), scans=scans, reason=reason, times=times)


REGISTRATION = Question.read(
    WORDS,
    "registration",
    draw=build,
    tasks=ANY_TASK,
    cautions=(
        Check("mirrored", _mirrored, ("registration",)),
        Check("registration", _registration, ("registration",)),
    ),
)
