"""How well the scans lie on the template: the numbers of every scan, the doubtful ones by eye, and a chart of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.registration.quality.flags import MIN_COHORT
from heatlas.reports.cautions.method_cautions import (
    mirrored_scans,
    mostly_flagged,
    outlying_scans,
    registered,
    roughly_extracted,
    sides_unknown,
)
from heatlas.reports.figures.gallery import BLUE, INK, VERMILION, Picture, new_figure
from heatlas.reports.frame import pages
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.overviews import FLICKER
from heatlas.reports.frame.tables import Column, numeric, page_table, remark
from heatlas.reports.questions.question import ANY_TASK, Question
from heatlas.reports.words.numbers import LONGEST_TEXT, count, fixed, percent, shortened

_COLUMNS = (
    Column("participant_id", "Participant"),
    Column("session_id", "Session"),
    Column("status", "Status"),
    Column("flags", "Doubtful because", remark),
    Column("decision", "Decision", remark),
    Column("overview", "Overview", remark, hint="contours of the template on the scan", link="overview_url"),
    Column("worst_regions", "Worst regions", remark, hint="correlation with the template in and around them"),
    numeric("correlation", "Correlation", lambda x: fixed(x, 3), "with the template brain, inside its mask"),
    numeric("dice", "Dice", lambda x: fixed(x, 3), "overlap of brain masks"),
    numeric("min_jacobian", "Smallest Jacobian", lambda x: fixed(x, 3), "of the warp inside the mask; ≤ 0 is folding"),
    numeric("nonpositive_jacobian_share", "Folded share", lambda x: percent(x, 2)),
    numeric("rotation_degrees", "Rotation, °", lambda x: fixed(x, 1)),
    numeric("scale", "Scale", lambda x: fixed(x, 3)),
    numeric("affine_residual_mm", "Warp, mm", lambda x: fixed(x, 1), "root mean square displacement"),
    numeric("brain_ml", "Brain, ml", lambda x: fixed(x, 0), "brain mask in the scan"),
    numeric("dark_ml", "Dark as a lesion, ml", lambda x: fixed(x, 1), "largest connected part"),
    numeric(
        "outside_share", "Outside", lambda x: percent(x, 0), "share of the brain mask outside the template's brain"
    ),
    numeric(
        "side_score",
        "Sides",
        lambda x: fixed(x, 2),
        "asymmetry against that of the others; below 0, left and right may be exchanged",
    ),
    Column("brain_extraction", "Brain extraction"),
)
_SUMMARY = ("correlation", "dice", "min_jacobian")
SHOWN = 6  # doubtful scans whose overview is on the page; the others are linked


def build(material: Material) -> Mapping[str, Any]:
    """Medians, a small plot and the table, worst scans first."""
    quality = material.run.tables["registration"].copy()
    good = registered(material.run)
    outlying = outlying_scans(good)
    quality["look"] = quality.index.isin(good.index[outlying]) | (quality["status"] != "registered")
    ordered = quality.sort_values(["look", "correlation"], ascending=[False, True])
    ordered = _with_overviews(ordered.assign(brain_ml=ordered["brain_mm3"].astype(float) / 1000), material)
    picture = None
    if len(good):
        picture = material.gallery.add(
            draw_registration(good, outlying, named=material.shows_people),
            "registration_quality",
            f"Overlap and correlation with the template of {count(len(good), 'registered scan')}.",
            f"Each point is one of {count(len(good), 'registered scan')}. Look at scans in the lower left corner in a "
            "viewer before you rely on their relevance.",
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


def _with_overviews(quality: pd.DataFrame, material: Material) -> pd.DataFrame:
    """The table with the path of each overview figure, relative to the report."""
    files = [material.run.files_of(row).overview for row in quality.to_dict("records")]
    paths = [path.relative_to(material.run.layout.root).as_posix() if path.is_file() else None for path in files]
    return quality.assign(
        overview=pd.Series(["figure" if path else None for path in paths], quality.index, dtype=object),
        overview_url=pd.Series([quote(path) if path else None for path in paths], quality.index, dtype=object),
    )


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
            f"{shortened(row['participant_id'])}: {shortened(row['flags'], LONGEST_TEXT)}. Orange, the template's "
            f"brain mask; blue, its white matter. L and R are the person's sides.{FLICKER}",
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


REGISTRATION = Question(
    "registration", "Do the scans lie on the template?", "Registration", pages.REGISTRATION, draw=build,
    requires=("registration",), absent="No scan has been registered yet.", tasks=ANY_TASK,
)  # fmt: skip
