"""What differs in the images beside what the network used: by region, for the leading map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.statistics.images.differences import BOTH, CLEAR, DIFFERS_ONLY, USED_ONLY, VERDICTS
from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.figures.differences import draw_differences
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import PageTable, columns_of, page_table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, interval, listing, mid_sentence, number, p_value
from heatlas.reports.words.wording import covariates_in_words, worded

NAME = "image_differences"
NAMED = 6  # regions named of each kind
_COLUMNS = (
    "group",
    "difference",
    "ci_low",
    "ci_high",
    "hedges_g",
    "t",
    "p_fwe",
    "evidence_g",
    "evidence_p_fwe",
    "verdict",
)
_LEAD = (
    "The scans that the network saw are compared between {positive} and {negative} without any network, region by "
    "region, and beside it stands how the evidence of {map} differs, tested in the same way. What differs need not be "
    "used. Intensity is the mean of the image that the network sees, in standard deviations over the brain; volume "
    "change is the mean log-Jacobian of the registration, the size of the brain left out. People are the units; "
    "family-wise p is over the regions of the image, and of the map, each; maps are compared within test folds. Held "
    "constant: {covariates}. A difference that is not significant is not shown to be absent, and a network may combine "
    "regions of which none alone is significant."
)


def rows_of_leader(run: RunRecord) -> pd.DataFrame:
    """Rows of the leading map; of the first map of the table, where the leading one is not in it."""
    table = run.tables[NAME]
    of_leader = table[table["map"] == run.leading_map]
    return of_leader if len(of_leader) else table[table["map"] == table["map"].iloc[0]]


def sentence(rows: pd.DataFrame) -> str:
    """Which regions differ and are used, differ only, or are used only, clearest first.

    Examples
    --------
    >>> rows = pd.DataFrame({"group": ["Hippocampus", "Amygdala", "Putamen"], "t": [-5.0, 3.0, 1.0],
    ...     "verdict": ["differs and is used", "differs, not used", "neither"], "evidence_t": [4.0, 1.0, 0.0]})
    >>> sentence(rows)
    '1 region differs and is used: hippocampus. 1 region differs without being used clearly: amygdala. No region is used without differing clearly.'
    """  # noqa: E501
    sentences = []
    for kind, verb, other, by in (
        (BOTH, "{} and {} used", "differs and is used", "t"),
        (DIFFERS_ONLY, "{} without being used clearly", "differs without being used clearly", "t"),
        (USED_ONLY, "{1} used without differing clearly", "is used without differing clearly", "evidence_t"),
    ):
        of_kind = rows[rows["verdict"] == kind]
        if of_kind.empty:
            sentences.append(f"No region {other}.")
            continue
        order = of_kind[by].abs().sort_values(ascending=False, kind="stable").index
        names = [mid_sentence(name) for name in of_kind.loc[order, "group"]]
        more = [f"{number(len(names) - NAMED)} more"] if len(names) > NAMED else []
        forms = ("differs", "is") if len(names) == 1 else ("differ", "are")
        sentences.append(f"{count(len(names), 'region')} {verb.format(*forms)}: {listing(names[:NAMED] + more)}.")
    return " ".join(sentences)


def agreement(run: RunRecord, measure: str, name: str) -> str:
    """The rank correlation of images and map, in a sentence; empty where there is none."""
    if not run.has("image_agreement"):
        return ""
    table = run.tables["image_agreement"]
    of_map = table[(table["measure"] == measure) & (table["map"] == name) & table["r"].notna()]
    if of_map.empty:
        return ""
    row = of_map.iloc[0]
    bounds = interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)
    return (
        f"Over {count(int(row['n_regions']), 'region')}, the size of the difference in the images and that in the map "
        f"have a rank correlation of {fixed(row['r'])} ({bounds}); where participants change classes it is "
        f"{fixed(row['by_chance'])} on average ({p_value(row['p'])})."
    )


def verdict(run: RunRecord) -> Verdict | None:
    """The answer of the section, of the first measure of the images."""
    if not run.has(NAME) or run.tables[NAME].empty:
        return None
    rows = rows_of_leader(run)
    measure, name = rows["measure"].iloc[0], rows["map"].iloc[0]
    of_measure = rows[rows["measure"] == measure]
    what = f"{worded(measure).capitalize()} of the images; {map_title(name)}."
    return Verdict(sentence(of_measure), f"{what} {agreement(run, measure, name)}")


def build(material: Material) -> Mapping[str, Any]:
    """A block per measure: the sentence, the picture of both, and the table."""
    run = material.run
    rows = rows_of_leader(run)
    name = rows["map"].iloc[0]
    held = rows["covariates"].dropna()
    lead = _LEAD.format(
        positive=run.positive, negative=run.negative, map=map_title(name),
        covariates=covariates_in_words(held.iloc[0]) if len(held) else "nothing",
    )  # fmt: skip
    blocks = []
    for measure, of_measure in rows.groupby("measure", sort=False):
        text = f"{sentence(of_measure)} {agreement(run, str(measure), name)}"
        blocks.append({
            "title": worded(measure).capitalize(), "said": text, "figure": _figure(material, of_measure),
            "table": _table(material, of_measure),
        })  # fmt: skip
    return {"lead": lead, "blocks": blocks}


def _figure(material: Material, rows: pd.DataFrame) -> Picture | None:
    known = rows[rows["hedges_g"].notna() & rows["evidence_g"].notna()]
    if known.empty:
        return None
    run, measure, title = material.run, worded(known["measure"].iloc[0]), map_title(known["map"].iloc[0])
    counts = [f"{number((known['verdict'] == kind).sum())} {kind}" for kind in VERDICTS[:4]]
    people = (
        f"{number(known['n_positive'].iloc[0])} {run.positive}, {number(known['n_negative'].iloc[0])} {run.negative}"
    )
    return material.gallery.add(
        draw_differences(known, f"{measure} of the images: Hedges' g", f"{title}: Hedges' g of the evidence"
                         if known["map"].iloc[0] in run.evidence_maps else f"{title}: Hedges' g"),
        f"image_differences_{known['measure'].iloc[0]}",
        f"Scatter of {count(len(known), 'region')}, difference in the images against difference in the map: "
        f"{'; '.join(counts)}.",
        f"Each point is a bilateral group: across, how its {measure} in the images differs between {run.positive} and "
        f"{run.negative}; up, how the density of {title} does (people: {people}). Colours and markers give the verdict "
        f"by both family-wise p below {CLEAR:g}: {'; '.join(counts)}. Named: regions with a verdict other than "
        "neither, and the outermost of the others.",
    )  # fmt: skip


def _table(material: Material, rows: pd.DataFrame) -> PageTable:
    run = material.run
    least = np.fmin(rows["p_fwe"], rows["evidence_p_fwe"])
    shown = rows.assign(least=least, size=-rows["hedges_g"].abs()).sort_values(["least", "size"], kind="stable")
    shown = shown.assign(group_page=shown["group"].map(material.links.region).astype(object))
    titles = {"evidence_g": "Map: Hedges' g", "evidence_p_fwe": "Map: corrected p (family-wise)"}
    file = TABLES[NAME].path(run.layout).relative_to(run.layout.root).as_posix()
    caption = (
        f"Differences in the images ({worded(rows['measure'].iloc[0])}) and in {map_title(rows['map'].iloc[0])}, "
        f"smallest corrected p of both first. {TABLES[NAME].tests} Every row and column is in {file}."
    )
    return page_table(shown, columns_of(run, NAME, _COLUMNS, **titles), caption, len(shown))
