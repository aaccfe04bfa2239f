"""Parts of the evaluation that are about networks: removed regions, other networks, invariance, frozen backbones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from heatlas.pipeline.attribution.titles import method_title
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.questions.map_verdicts import title_of
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, listing, mid_sentence, number, p_cell, p_value, percent, signed
from heatlas.studies.consensus.agreement import FOLDS, SEVERAL
from heatlas.studies.long_tail import TAIL
from heatlas.studies.representations.probes import ALL, PROBES
from heatlas.studies.representations.table import AGREEMENT, BACKBONE, SITE
from heatlas.studies.retraining.stage import AT_RANDOM, NOTHING

ROWS = 12
"""Rows shown of each table; the others are in its file."""
NAMED = 4
"""Regions or methods named in a sentence."""
ALPHA = 0.05
_PAIRS = {
    FOLDS: "Other folds", "seed": "Other seeds", "epochs": "Other numbers of epochs", "family": "Other families",
    SEVERAL: "Several of these",
}  # fmt: skip
_PROBES = {
    **dict(zip(PROBES, ("Nearest person", "Ten nearest people", "Few of each class", "All, with rare classes"),
               strict=True)),
    AGREEMENT: "Nearest other scan", SITE: "Site",
}  # fmt: skip


def named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - NAMED
    return listing(list(names)) if more <= 0 else f"{', '.join(names[:NAMED])} and {number(more)} more"


def retraining(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Accuracy of networks trained without the regions that each map ranks first, beside random regions."""
    whole = table.loc[table["map"] == NOTHING, "balanced_accuracy"]
    judged = table[~table["map"].isin([NOTHING, AT_RANDOM])]
    needed = judged[judged["p_balanced_accuracy"] < ALPHA]
    shares = [f"{title_of(row['map'])} ({percent(row['volume_share'], 0)})" for row in needed.to_dict("records")]
    text = (
        "Networks are trained again without the regions that a map ranks first, and without random regions of the same "
        "volume. A larger drop shows that the networks need the regions; none does not show that the map is wrong, "
        "since other regions may carry the same information. "
        f"Larger than without random regions (p < {ALPHA:g}, not corrected): {listing(shares) if shares else 'no map'}."
    )
    if len(whole):
        text += f" Balanced accuracy with all regions: {fixed(whole.iloc[0])}."
    rows = judged.assign(
        title=judged["map"].map(title_of),
        volume=judged["volume_share"].map(lambda share: percent(share, 0)),
        order=judged["balanced_accuracy_drop"].fillna(-1),
    ).sort_values(["volume_share", "order"], ascending=[True, False], kind="stable")
    columns = [
        Column("title", "Map"), Column("volume", "Volume removed"),
        numeric("balanced_accuracy", "Balanced accuracy without", fixed),
        numeric("balanced_accuracy_drop", "Drop", signed), numeric("balanced_accuracy_drop_low", "From", signed),
        numeric("balanced_accuracy_drop_high", "To", signed),
        numeric("balanced_accuracy_random_drop", "Drop, random regions", signed, "mean over draws"),
        numeric("p_balanced_accuracy", "p", p_cell),
    ]  # fmt: skip
    draws = table["n_draws"].max()
    by_draws = f"{number(draws)} draws of random regions; " if pd.notna(draws) else ""
    return text, (page_table(rows, columns, f"{by_draws}95 % intervals over participants.", ROWS),)


def consensus(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """How alike rankings of regions and people's maps are between sets of networks; which regions most have first."""
    means = table.groupby(["map", "differ_in"], sort=False)[
        ["region_spearman", "shared_first", "shared_first_expected", "map_spearman"]
    ].mean()
    rows = means.reset_index().assign(pairs=table.groupby(["map", "differ_in"], sort=False).size().to_numpy())
    rows = rows.assign(title=rows["map"].map(title_of), differ=rows["differ_in"].map(_PAIRS))
    columns = [
        Column("title", "Map"), Column("differ", "Networks differ in"), numeric("pairs", "Pairs"),
        numeric("region_spearman", "Correlation of rankings", fixed, "rank correlation of Hedges' g over regions"),
        numeric("shared_first", "Shared of the first 10", lambda value: fixed(value, 1)),
        numeric("shared_first_expected", "Expected by chance", lambda value: fixed(value, 1)),
        numeric("map_spearman", "Correlation of a person's maps", fixed, "over regions, mean over participants"),
    ]  # fmt: skip
    text = (
        "Networks of other folds, seeds, epochs and families are asked for the same maps: do they rank regions alike? "
    )
    seeds = rows[rows["differ_in"] == "seed"]
    if len(seeds):
        best = seeds.sort_values("region_spearman", ascending=False).iloc[0]
        text += (
            f"Between networks that differ only in their seed, rankings agree best for {best['title']} (rank "
            f"correlation {fixed(best['region_spearman'])}). "
        )
    tables = [page_table(rows, columns, "Means over pairs of sets of networks.", ROWS)]
    if run.has("consensus_regions"):
        sentence, region_table = _regions(run.tables["consensus_regions"])
        text, tables = text + sentence, [*tables, region_table]
    return text.rstrip(), tuple(tables)


def _regions(table: pd.DataFrame) -> tuple[str, PageTable]:
    """Regions by their mean rank, of the map whose networks agree best on its first one."""
    name = table.sort_values("mean_place", kind="stable")["map"].iloc[0]
    of_map = table[table["map"] == name].sort_values("place", kind="stable")
    columns = [
        Column("group", "Region"),
        numeric("mean_place", "Mean rank", lambda value: fixed(value, 1)),
        numeric("first_share", "Among the first 10 in", lambda share: percent(share, 0), "of the sets of networks"),
    ]
    networks = number(of_map["n_networks"].max())
    caption = f"{title_of(name)}: regions by their mean rank over {networks} sets of networks."
    return f"First over all: {listing(of_map['group'].head(3).tolist())}.", page_table(of_map, columns, caption, ROWS)


def invariance(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """Whether maps depend on how a function is written."""
    rows = table.assign(title=table["method"].map(method_title))
    same = rows["invariant"].map(lambda value: {"true": "yes", "false": "no"}.get(str(value).lower(), "n/a"))
    rows = rows.assign(same=same)
    depends = rows.loc[same == "no", "title"].tolist()
    text = (
        "Two networks compute the same function; the second does it with two units that cancel. A map that differs "
        f"depends on how a function is written. Differ: {listing(depends) if depends else 'none'}."
    )
    columns = [
        Column("title", "Method"), Column("same", "Same map"),
        numeric("share_plain", "Share on unread features", fixed),
        numeric("share_cancelling", "With the two units", fixed), numeric("n_grids", "Grids"),
    ]  # fmt: skip
    return text, (
        page_table(rows, columns, "Share of |attribution| on features that the network does not read.", ROWS),
    )


def representations(run: RunRecord, table: pd.DataFrame) -> tuple[str, tuple[PageTable, ...]]:
    """What the backbone knows, beside the same network untrained: classes by probes, and the site."""
    probes = table[
        (table["features"] == BACKBONE) & table["measure"].isin(_PROBES) & table["classes"].isin((ALL, TAIL))
    ]
    rows = probes.assign(title=probes["measure"].map(_PROBES), n_participants=probes["n_participants"].astype(float))
    columns = [
        Column("title", "Told apart"), Column("classes", "Classes"), numeric("estimate", "Share recognised", fixed),
        numeric("ci_low", "From", fixed), numeric("ci_high", "To", fixed), numeric("chance", "By chance", fixed),
        numeric("difference", "More than untrained", signed), numeric("difference_low", "From", signed),
        numeric("difference_high", "To", signed), numeric("n_participants", "Participants"),
    ]  # fmt: skip
    everyone = probes[(probes["classes"] == ALL) & probes["measure"].isin(PROBES)]
    better = everyone.loc[everyone["difference_low"] > 0, "measure"].map(_PROBES)
    text = (
        "The backbone learned without labels. Probes on its features learn the classes of some people and are tested "
        "on others whom the backbone has not seen; the same network before any training is the comparison. Clearly "
        f"better than untrained (interval above 0): {listing([mid_sentence(probe) for probe in better]) or 'no probe'}."
    )
    site = probes[(probes["measure"] == SITE) & probes["p"].notna()]
    if len(site):
        row = site.iloc[0]
        text += (
            f" It also knows the site: {fixed(row['estimate'])} recognised, {fixed(row['chance'])} by chance, "
            if row["p"] < ALPHA
            else f" That it knows the site is not shown: {fixed(row['estimate'])} recognised, "
            f"{fixed(row['chance'])} by chance, "
        ) + f"{p_value(row['p'])}."
    caption = "All: mean over classes; tail: the rarest. 95 % intervals. Single classes are in the file."
    return text, (page_table(rows, columns, caption, ROWS),)
