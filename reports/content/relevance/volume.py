"""Relevance of the hippocampus against its volume (figure 8 of the founding study): correlations and their charts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.registration.settled import JACOBIAN_SOURCE, RELIABILITY
from heatlas.pipeline.run.layout.scan_files import beta_of
from heatlas.pipeline.statistics.associations.volume_association import ADJUSTED, REGION, VOLUME, WITHIN
from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, Picture, new_figure
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import columns_of, page_table
from heatlas.reports.questions.findings import Estimate, leading_regions, smaller_shares
from heatlas.reports.questions.predictions import GUESSING, NO_FINDING, networks_guess
from heatlas.reports.questions.question import CLEAR, Answer, Caution, Check, Headline, Question, rows_where
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, interval, is_missing, listing, number, p_value
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import OWN, hippocampal_source

WORDS = Words(__file__)

_LEAD = (
    "If the network uses atrophy of the hippocampus, then among true positives those with a smaller hippocampus should "
    "have more relevance there. Each point is one participant, the mean of their scans; "
    "participants, not scans, are permuted."
)
_WITHIN = (
    " Maps of different test folds come from different networks, so the mean of the participant's test fold is "
    "subtracted from relevance and volume, and participants are permuted within their fold: such an r is a correlation "
    "within test folds."
)
_READ = (
    " p and interval come from permuting participants, each divided by its standard error; they are not corrected. An "
    "interval without 0 is no finding if the corrected p is not below 0.05."
)
_UNITS = {
    "participant": "Unit participant: means over scans.",
    "scan": "Unit scan: each scan counts, which is descriptive; p is from permuting participants with as many scans.",
    WITHIN: "Unit within participant: each visit minus the mean of its participant, so r says whether relevance "
    "and volume change together over the visits of a person (repeated-measures correlation); p is from flipping the "
    "signs of participants' changes in relevance.",
}
"""What each unit of the table means."""
_CENTRED = "The mean of the true positives of the test fold is subtracted from both; r is within test folds. "
_CAPTION = "Correlation of hippocampal relevance with hippocampal volume in true positives"
_COLUMNS = (
    "map", "volume", "unit", "estimator", "r", "fold_held", "ci_low", "ci_high", "p", "p_fdr", "n_participants",
    "n_scans", "note",
)  # fmt: skip


def build(material: Material) -> Mapping[str, Any]:
    """Scatter for the leading maps, curve over beta, and the table with its notes."""
    run = material.run
    table = run.tables["volume_association"]
    known = table["r"].notna().any()
    notes = [] if known else [f"No correlation is known: {listing(sorted(set(table['note'].dropna())))}."]
    shown = table[table["r"].notna()]
    shown = shown.assign(map=shown["map"].map(map_title), volume=shown["volume"].map(VOLUME_TITLES))
    primary = shown[(table.loc[shown.index, "volume"] == primary_volume(run)) & (shown["unit"] == "participant")]
    columns = columns_of(run, "volume_association", _COLUMNS)
    units = " ".join(meaning for unit, meaning in _UNITS.items() if (shown["unit"] == unit).any())
    within = {len(rows) > 0 and bool(rows["fold_held"].all()) for rows in (primary, shown)}
    caption = _CAPTION + (", within test folds" if within == {True} else "")
    tests = TABLES["volume_association"].tests
    return {
        "lead": _LEAD
        + (_WITHIN if shown["fold_held"].any() else "")
        + _sources(run)
        + _READ
        + _survivors(shown[shown["unit"] == "participant"]),
        "notes": notes,
        "scatter": _scatter(material) if known else None,
        "curve": _curve(material) if known else None,
        "table": page_table(primary.drop(columns="unit"), columns, f"{caption}, one point per participant. {tests}")
        if known
        else None,
        "all": page_table(shown, columns, f"{caption}, every analysis. {units} {tests}") if known else None,
    }


def _sources(run: RunRecord) -> str:
    return WORDS.say("sources", hippocampal_source=hippocampal_source(run, whole=True), OWN=OWN)


def _survivors(rows: pd.DataFrame) -> str:
    """Which maps and coefficients survive correction over the maps."""
    clear = rows[rows["p_fdr"] < CLEAR]
    said = [WORDS.say("survivor", row=row) for row in clear.to_dict("records")]
    if not len(rows):
        return ""
    against = " An r above 0 is the opposite of what atrophy predicts." if (clear["r"] > 0).any() else ""
    return WORDS.say(
        "survivors",
        clear=len(clear),
        correlations=len(rows),
        which=": " + "; ".join(said) if said else "",
        against=against,
    )


def participant_points(run: RunRecord, map_name: str, outcome: str = "TP") -> pd.DataFrame:
    """One row per participant: mean relevance and mean primary volume of their scans of an outcome.

    Where r is a correlation within test folds, the mean of the true positives of the participant's test fold is
    subtracted from both; a fold without true positives gives no points.
    """
    points = run.tables["volume_points"]
    column = "hippocampus_per_tiv" if primary_volume(run) == ADJUSTED else "hippocampus_mm3"
    points = points[(points["map"] == map_name) & points[column].notna() & points["relevance_sum"].notna()]
    values = [column, "relevance_sum"]

    def means_of(one: str) -> pd.DataFrame:
        people = points[points["outcome"] == one].groupby("participant_id")
        return people[values].mean().assign(fold=people["fold"].first())

    means, estimate = means_of(outcome), volume_estimate(run, map_name)
    if estimate is not None and estimate.fold_held:
        of_folds = means_of("TP").groupby("fold")[values].mean()
        means[values] -= of_folds.reindex(means["fold"]).set_axis(means.index)
    return means[values].dropna().rename(columns={column: "volume", "relevance_sum": "relevance"})


def _scatter(material: Material) -> Picture | None:
    run = material.run
    points, beside, texts, units, centred = {}, {}, {}, {}, []
    for name in run.main_maps:
        estimate = volume_estimate(run, name)
        if estimate is None or not run.has("volume_points"):
            continue
        title = map_title(name)
        points[title], units[title] = participant_points(run, name), run.map_unit(name)
        beside[title] = participant_points(run, name, "FP")
        bounds = interval(estimate.low, estimate.high, 2, run.config.statistics.confidence)
        if estimate.fold_held:
            centred.append(title)
        texts[title] = (
            f"r = {fixed(estimate.value, 3)}{within_folds(estimate)}, n = {number(estimate.participants)}\n"
            f"corrected {p_value(estimate.p_fdr)} (FDR), {bounds}"
        )
    if not points:
        return None
    adjusted = primary_volume(run) == ADJUSTED
    drawn = max(map(len, beside.values()))
    false_positives = f"open, {count(drawn, 'false positive')}" if drawn else "there is no false positive to draw"
    source = hippocampal_source(run)
    axis = "hippocampal ÷ intracranial volume" if adjusted else "hippocampal volume, mm³"
    return material.gallery.add(
        draw_volume_scatter(points, texts, units, f"{axis}\n({source})", centred, beside),
        "bohle2019-08_volume-scatter",
        f"Scatter of hippocampal relevance against {axis}: " + "; ".join(f"{t}, {texts[t]}" for t in points) + ".",
        WORDS.say(
            "scatter_caption",
            false_positives=false_positives,
            source=source,
            divided="They are divided by intracranial volume. " if adjusted else "",
            centring=_CENTRED if centred else "",
        ),
    )


def _curve(material: Material) -> Picture | None:
    run = material.run
    curves = {}
    names = [name for name in run.lrp_names if volume_estimate(run, name) is not None]
    if len(names) < 2:
        return None
    for estimator in ("pearson", "spearman"):
        rows = [volume_row(run, name, estimator) for name in names]
        frame = pd.DataFrame([row for row in rows if row is not None])
        curves[estimator.capitalize()] = frame.rename(columns={"r": "estimate", "ci_low": "low", "ci_high": "high"})
    n = int(curves["Pearson"]["n_participants"].max())
    within = ", within test folds" if all(curve["fold_held"].all() for curve in curves.values()) else ""
    return material.gallery.add(
        draw_beta_curve([beta_of(name) or 0.0 for name in names], curves),
        "bohle2019-08b_volume-by-beta",
        f"Correlation of hippocampal relevance with volume by beta{within}, {count(n, 'participant')}.",
        WORDS.say("curve_caption", within=within, n=n, source=hippocampal_source(run)),
    )


def draw_volume_scatter(
    points: Mapping[str, pd.DataFrame],
    texts: Mapping[str, str],
    units: Mapping[str, str],
    volume_title: str,
    centred: Collection[str] = (),
    beside: Mapping[str, pd.DataFrame] = MappingProxyType({}),
) -> Figure:
    """Relevance of the hippocampus against its volume, one panel per map, one point per participant.

    `points`: title of a panel to columns ``volume`` and ``relevance``. `texts`: coefficient, interval, p and n of each
    panel. `units`: of the relevance in each. `volume_title`: with its unit. `centred`: titles of the panels whose
    values are deviations from the means of test folds. `beside`: false positives, which neither r nor the line has.
    """
    figure = new_figure(4.3 * len(points), 3.6)
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    for ax, (title, frame) in zip(axes, points.items(), strict=True):
        ax.scatter(frame["volume"], frame["relevance"], s=26, color=VERMILION, alpha=0.8, linewidths=0)
        others = beside.get(title, pd.DataFrame())
        if len(others):
            ax.scatter(others["volume"], others["relevance"], s=30, marker="D", facecolors="none", edgecolors=BLUE)
        _fit_line(ax, frame["volume"].to_numpy(float), frame["relevance"].to_numpy(float))
        ax.set_title(f"{title}\n{texts[title]}", fontsize=8.5, fontweight="normal")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        less = "\nminus the mean of the test fold" if title in centred else ""
        ax.set_xlabel(volume_title + less)
        ax.set_ylabel(f"{units[title]}, hippocampus" + less)
    return figure


def _fit_line(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Least-squares line, to guide the eye."""
    if len(x) > 2 and np.ptp(x) > 0:
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        ax.plot(ends, offset + slope * ends, color=INK, lw=1)


def draw_beta_curve(betas: Sequence[float], curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Correlation with volume by beta.

    `curves`: name of a coefficient to columns ``estimate``, ``low``, ``high``, in the order of `betas`.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    width = 0.012 * (max(betas) - min(betas) or 1)
    for shift, (name, curve), colour, marker in zip((-1, 1), curves.items(), (VERMILION, BLUE), "os", strict=False):
        x = np.asarray(betas) + shift * width
        errors = np.vstack([curve["estimate"] - curve["low"], curve["high"] - curve["estimate"]]).clip(min=0)
        ax.errorbar(x, curve["estimate"], np.nan_to_num(errors), color=colour, marker=marker, ms=5, lw=1.4,
                    elinewidth=1, capsize=2, label=name)  # fmt: skip
    ax.axhline(0, color=GREY, lw=1)
    ax.set_xticks(list(betas))
    ax.set_xlabel("β")
    ax.set_ylabel("correlation with hippocampal volume")
    figure.legend(loc="outside lower center", ncols=2)  # anywhere inside, intervals cross it
    return figure


VOLUME_TITLES = {VOLUME: "as it is", ADJUSTED: "÷\xa0intracranial"}


def primary_volume(run: RunRecord) -> str:
    """The volume that leads: divided by intracranial volume where that is known, else as it is."""
    table = run.tables["volume_association"]
    return ADJUSTED if table.loc[table["volume"] == ADJUSTED, "r"].notna().any() else VOLUME


def volume_row(run: RunRecord, map_name: str, estimator: str = "pearson") -> pd.Series | None:
    """Row of the association with the primary volume over participants."""
    rows = rows_where(
        run, "volume_association", volume=primary_volume(run), map=map_name, estimator=estimator, unit="participant"
    )
    return None if rows.empty else rows.iloc[0]


def volume_estimate(run: RunRecord, map_name: str) -> Estimate | None:
    """Correlation of hippocampal relevance with volume over true-positive participants; None if it is not known."""
    if not run.has("volume_association"):
        return None
    row = volume_row(run, map_name)
    if row is None or is_missing(row["r"]):
        return None
    return Estimate(
        row["r"], row["ci_low"], row["ci_high"], int(row["n_participants"]), int(row["n_scans"]), row["p"],
        row["p_fdr"], bool(row["fold_held"]),
    )  # fmt: skip


def within_folds(estimate: Estimate) -> str:
    """Words that follow r: whether it is a correlation within test folds."""
    return " within test folds" if estimate.fold_held else ""


def _does_it_agree(run: RunRecord) -> Answer:
    """The answer of the summary."""
    name = run.leading_map
    estimate = volume_estimate(run, name)
    if not run.has("volume_association"):
        return Answer("Not known: the statistics have not been run yet.")
    if estimate is None:
        return Answer("Not known: there are no true positives with a hippocampal volume, or too few of them.")
    guided = volume_estimate(run, "gb")
    known = [
        (map_title(one), estimate_of_map)
        for one, estimate_of_map in ((name, estimate), ("gb", guided))
        if estimate_of_map is not None
    ]
    what = "evidence" if run.leads_with_evidence else "relevance"
    adjusted = ", divided by intracranial volume," if primary_volume(run) == ADJUSTED else ""
    source = hippocampal_source(run)
    confidence = run.config.statistics.confidence
    each = [
        WORDS.say(
            "of_map",
            title=title,
            one=one,
            within_folds=within_folds(one),
            interval=interval(one.low, one.high, 2, confidence),
        )
        for title, one in known
    ]
    guess, r = networks_guess(run), f"r = {fixed(estimate.value)}"
    in_short = _in_short([one for _, one in known])
    clear = estimate.p_fdr < CLEAR and not guess
    figure = r if clear else NO_FINDING if guess else in_short.rstrip(".").replace(" by the headline map", "")
    in_short = f"{GUESSING} " if guess else f"{in_short} " * (clear or "headline" in in_short)
    text = WORDS.say("atrophy", in_short=in_short, what=what, not_grown=_not_grown(run, name))
    more = WORDS.say(
        "atrophy_more",
        estimate=estimate,
        what=what,
        source=source,
        adjusted=adjusted,
        each=each,
        interval_against_p=interval_against_p(known),
    )
    if guided is not None:
        same = (guided.value < 0) == (estimate.value < 0)
        more += f"The two maps {'agree' if same else 'disagree'} in the sign."
    caption = WORDS.say(
        "atrophy_caption",
        r="" if clear else f"{r}; ",
        what=what,
        per_intracranial=" ÷ intracranial volume" * bool(adjusted),
        within_folds=within_folds(estimate),
        name=name,
        estimate=estimate,
    )
    return Answer(text, figure, caption, more.strip())


def _not_grown(run: RunRecord, name: str) -> str:
    """Regions whose share of the map is smaller in the positive class, despite its atrophy; empty without any."""
    if not run.has("relevance_bilateral", "predictions") or name in run.evidence_maps:  # which is not read as a share
        return ""
    regions = dict.fromkeys((REGION, *leading_regions(run, name, "density"), *leading_regions(run, name, "sum")))
    fewer = smaller_shares(run, name, tuple(regions))
    return f" Between the classes, {fewer}: relevance there did not increase with the disease." if fewer else ""


def interval_against_p(known: Sequence[tuple[str, Estimate]]) -> str:
    """Which intervals and corrected p values of the same r seem to contradict each other."""
    without = [
        title for title, estimate in known if (estimate.low > 0 or estimate.high < 0) and estimate.p_fdr >= CLEAR
    ]
    around = [title for title, estimate in known if estimate.low <= 0 <= estimate.high and estimate.p_fdr < CLEAR]
    remarks = [
        WORDS.say(
            "interval_against_p",
            titles=titles,
            has_intervals="has an interval" if len(titles) == 1 else "have intervals",
            word=word,
            side=side,
        )
        for titles, word, side in ((without, "without", "not below"), (around, "with", "below"))
        if titles
    ]
    if not remarks:
        return ""
    return f"{listing(remarks)}: intervals are not corrected; the conclusion rests on the corrected p. "


def _in_short(estimates: Sequence[Estimate]) -> str:
    """The answer in short, from the correlations that survive correction; the headline map comes first."""
    signs = {estimate.value < 0 for estimate in estimates if estimate.p_fdr < CLEAR}
    if not signs:
        return "No clear correlation."
    if len(signs) == 2:
        return "The maps contradict each other."
    if not estimates[0].p_fdr < CLEAR:
        return "No clear correlation by the headline map."
    return "Yes." if signs == {True} else "No: the opposite of what atrophy predicts."


def _own_volumes(run: RunRecord) -> Caution | None:
    """Hippocampal volumes that come from the registration, not from a segmentation."""
    kept = run.tables["scans"][run.tables["scans"]["kept"].astype(bool)]
    known = kept[kept["hippocampus_mm3"].notna()]
    from_jacobian = known["hippocampus_source"].astype(str).str.startswith(JACOBIAN_SOURCE)
    if not from_jacobian.any():
        return None
    text = WORDS.say("own_volumes", from_jacobian=int(from_jacobian.sum()), volumes=len(known), RELIABILITY=RELIABILITY)
    if not from_jacobian.all():
        text += " The others come from the input; volumes of the two kinds should not be compared."
    return Caution(
        "note" if from_jacobian.all() else "serious",
        "Hippocampal volumes were measured by the registration.",
        text,
        "volume",
    )


VOLUME_AND_RELEVANCE = Question.read(
    WORDS,
    "volume",
    draw=build,
    cautions=(Check("own-volumes", _own_volumes, ("scans",)),),
    headline=Headline(("volume_association",), _does_it_agree),
)
