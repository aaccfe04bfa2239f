"""Where the network looks, for the summary: by evidence in logits where an evidence map leads, else by density."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heatlas.pipeline.attribution.titles import map_title
from heatlas.reports.analyses.findings import (
    FEW_FIRSTS,
    densest,
    evidence_differences,
    firsts,
    firsts_in_words,
    in_words,
    leaders,
    leading_evidence,
    leading_in_words,
    least_voxels,
    map_shares,
    overlap_in_words,
    small_regions,
    summary_means,
    with_places,
)
from heatlas.reports.analyses.map_verdicts import bench_sentence, evaluated
from heatlas.reports.analyses.verdicts import CLEAR, classes_compared, g_in_words
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, listing, mid_sentence, number, signed

WHERE = "Where does it look?"
NAMED = 5  # regions named for each measure


@dataclass(frozen=True)
class Answer:
    """An answer; `figure` is a number in large type, `more` is folded under the answer."""

    question: str
    text: str
    figure: str = ""
    figure_caption: str = ""
    more: str = ""


def where_it_looks(run: RunRecord) -> Answer:
    """Where the leading map lies; LRP, as in the founding study, below it where an evidence map leads."""
    if not run.leads_with_evidence:
        return _regions_by_density(run, run.leading_map)
    name = run.leading_map
    found = leading_evidence(run, name, NAMED)
    if not found.regions:
        return Answer(WHERE, "Not known: the evidence of regions has not been compared between the classes.")
    tested = evidence_differences(run, name)
    level = 100 * run.config.statistics.confidence
    first = tested.loc[[found.regions[0]]].iloc[0]
    text = (
        f"The evidence for {run.positive} differs most in these regions: "
        f"{with_places(tested, found.regions)}. Map: {mid_sentence(map_title(name))}, which "
        f"compares each scan with controls that its network was trained with.{evaluated(run, name)}"
    )
    more = (
        f"{count(int(first['n_first']), 'participant')} of {run.positive} and {number(first['n_second'])} of "
        f"{run.negative}; differences in {run.evidence_unit}: "
        f"{listing(leading_in_words(run, name, found.regions))}. In brackets: {level:g} % interval, Hedges' g "
        f"[interval]. "
    )
    more += f"{found.sentence.strip()} " if found.sentence else ""
    founding = next((one for one in run.main_maps if one in run.lrp_names), None)
    if founding is not None:
        below = _regions_by_density(run, founding)
        more += f"{bench_sentence(run, founding)} {below.text} {below.more}"
    may, n = firsts(tested), number(first["n_first"] + first["n_second"])
    size = f"difference of evidence {signed(first['difference'])} {run.evidence_unit}, n = {n}"
    if len(may) > FEW_FIRSTS:
        figure = "Not known which" if len(may) == len(tested) else f"One of {number(len(may))} regions"
        caption = f"{firsts_in_words(run, tested)} {found.regions[0]}: {size}."
    else:
        of = "all regions" if not may or found.regions[0] in may else "the regions that are not small"
        figure, caption = found.regions[0], f"first of {of}: {size}. {firsts_in_words(run, tested)}".strip()
    return Answer(WHERE, text, figure, caption, more.strip())


def _regions_by_density(run: RunRecord, name: str) -> Answer:
    """Where a map without a unit lies: its densest regions, its largest shares and gains."""
    densities = summary_means(run, name, "density", run.positive)
    if densities.empty:
        return Answer(WHERE, "Not known: no heatmaps have been summed over regions and analysed yet.")
    parts = map_shares(run, name, run.positive)
    if len(parts) and parts.isna().all():
        return Answer(WHERE, f"Not known: {map_title(name)} maps of {run.positive} hold no relevance.")
    by_density, by_share = (leading_regions(run, name, metric) for metric in ("density", "sum"))
    people = run.group_sizes[run.positive][1]
    fewer = smaller_shares(run, name, tuple(dict.fromkeys([*by_density, *by_share])))
    text = (
        f"In scans of {run.positive} ({count(people, 'participant')}), relevance ({map_title(name)}) is densest in "
        f"{in_words(by_density, parts)}. {firsts_in_words(run, densest(run, name))}"
    ).rstrip()
    if by_share:
        text += (
            f" Percentages are shares of the map; the largest shares lie in {in_words(by_share, parts)}."
            f"{f' Of these, {fewer}.' if fewer else ''}"
        )
    gains = summary_means(run, name, "gain", "TP")
    if len(gains):
        by_gain = leaders(run, gains, name, "gain", NAMED)
        hits = run.group_sizes["TP"][1]
        more = (
            f"Compared with {run.negative} (gain, {count(hits, 'true-positive participant')}), the largest ratios are "
            f"in {in_words(by_gain.regions)}. {overlap_in_words(by_density, by_gain.regions)}"
        )
    else:
        more = f"Gain against {run.negative} is not known."
    small = small_regions(run)
    if small:
        named = listing([f"{mid_sentence(group)}, {number(n)}" for group, n in small.items()])
        more += f" Regions of fewer than {count(least_voxels(run), 'voxel')} are ranked but not named ({named})."
    return Answer(WHERE, text, more=more)


def leading_regions(run: RunRecord, name: str, metric: str) -> tuple[str, ...]:
    """Regions that the summary names in the positive class: the densest, or those with the largest shares."""
    if metric == "density":
        return leaders(run, summary_means(run, name, metric, run.positive), name, metric, NAMED).regions
    return leaders(run, map_shares(run, name, run.positive), name, metric, 3).regions


def smaller_shares(run: RunRecord, name: str, regions: Sequence[str]) -> str:
    """Which of some regions hold a smaller share of the map in the positive class, after correction.

    If such a region is denser there, this is only because the whole map is stronger.
    """
    rows = classes_compared(run, map=name, metric="share")
    if rows.empty:
        return ""
    rows = rows[(rows["p_fwe"] < CLEAR) & (rows["difference"] < 0)].set_index("group")
    found = rows.to_dict("index")
    fewer = [f"{mid_sentence(group)} (g {g_in_words(found[group])})" for group in regions if group in found]
    if not fewer:
        return ""
    verb = "holds" if len(fewer) == 1 else "hold"
    return (
        f"{listing(fewer)} {verb} a smaller share of the map in {run.positive} than in {run.negative} "
        "(family-wise corrected)"
    )
