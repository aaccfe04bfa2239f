"""Which regions of a scan are named, and how its evidence compares with that of controls.

The same regions are named in the sentence, the picture, the table and the cautions of a person's page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from heatlas.reports.questions.comparisons import scaled_by_probability
from heatlas.reports.questions.findings import leading_evidence, place_of, small_regions
from heatlas.reports.questions.question import Caution
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, is_missing, mid_sentence, percent, sentence_case, signed
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


NAMED = 3
"""Regions with the largest parts of a scan's evidence that are named."""
WORTH_NAMING = 0.1
"""Share of the largest part from which on the largest of the other sign is named too."""
DENSEST = 5
"""Regions named where no evidence map leads."""


@dataclass(frozen=True)
class ScanRegions:
    """The leading map of one scan by bilateral group."""

    values: pd.Series  # evidence, or density of a map without a unit; groups without a voxel are left out
    largest: tuple[str, ...]  # with the largest parts of either sign
    headline: tuple[str, ...] = ()  # the region that differs most between the classes, where it is not among them

    @property
    def named(self) -> tuple[str, ...]:
        """Regions in the order of their numbers in the picture."""
        return (*self.largest, *self.headline)


@lru_cache(maxsize=8)  # every page asks
def regions_of_scans(run: RunRecord) -> Mapping[str, ScanRegions]:
    """The regions of every explained scan, labelled or not, by its id.

    An evidence map has a unit in which regions add up, so those with the largest parts are named, and of the other
    sign one at least, if it is worth naming. Sums of another map follow the size of regions; of it the densest are
    named.
    """
    evidence, found = run.leads_with_evidence, {}
    headline = leading_evidence(run, run.leading_map, 1).regions if evidence else ()
    for table in ("relevance_bilateral", "relevance_applied_bilateral"):
        if not run.has(table):
            continue
        rows = run.tables[table]
        rows = rows[rows["map"] == run.leading_map]
        for scan, of_scan in rows.groupby("scan_id", sort=False):
            values = of_scan.set_index("group")["sum" if evidence else "density"].dropna()
            found[str(scan)] = _by_evidence(values, headline) if evidence else _by_density(values)
    return found


def _by_evidence(values: pd.Series, headline: tuple[str, ...]) -> ScanRegions:
    ranked = values.sort_values(key=lambda parts: -parts.abs(), kind="stable")
    largest = list(map(str, ranked.index[:NAMED]))
    relative = ranked / ranked.iloc[0] if len(ranked) and ranked.iloc[0] else ranked
    if (relative[:NAMED] > 0).all():
        largest += map(str, relative.index[relative <= -WORTH_NAMING][:1])
    return ScanRegions(
        values, tuple(largest), tuple(one for one in headline if one in values.index and one not in largest)
    )


def _by_density(values: pd.Series) -> ScanRegions:
    positive = values[values > 0].sort_index().sort_values(ascending=False, kind="stable")
    return ScanRegions(values, tuple(map(str, positive.index[:DENSEST])))


@dataclass(frozen=True)
class FingerprintMeasure:
    """What a fingerprint compares, and how it is written."""

    title: str
    axis: str  # with its unit
    form: Callable[[object], str]
    factor: float = 1.0  # from the values to the unit of the axis


def measure_of(run: RunRecord, map_name: str) -> FingerprintMeasure:
    """Evidence of an evidence map; of any other map its share, which does not follow the strength of the whole map."""
    if map_name in run.evidence_maps:
        return FingerprintMeasure(f"Evidence, {run.evidence_unit}", f"evidence ({run.evidence_unit})", signed)
    return FingerprintMeasure("Share of the map", "share of the map, %", lambda share: percent(share, 2), 100.0)


def evidence_sentences(run: RunRecord, visits: pd.DataFrame) -> list[str]:
    """What the leading map says of each scan, as numbers that add up on the page; empty where it is no evidence map.

    It reads: "Scan I1: the evidence for AD is +2.50 logits. The 12 training controls that the map compares it with have
    −1.50 on average, a difference of +4.00. For AD: hippocampus +1.30 and lateral ventricle +0.40; against: cerebral
    white matter −0.90; the region that differs most between the classes, entorhinal area, +0.20; all else +3.00. Parts
    below about 0.3 logits are uncertain."
    """
    if not run.leads_with_evidence:
        return []
    accounts = [_of_leading_map(run, name) for name in ("evidence", "evidence_applied")]
    regions, found = regions_of_scans(run), []
    for scan in visits["scan_id"]:
        account = [table.loc[[scan]] for table in accounts if scan in table.index]
        if account and str(scan) in regions:
            found.append(_sentence(run, str(scan), account[0].iloc[0], regions[str(scan)]))
    return found


LARGEST = 5
"""Regions of either sign with their own line among the parts of a scan's evidence."""


@dataclass(frozen=True)
class EvidenceParts:
    """Evidence of one scan in parts that add up as they are written, with two decimals.

    `pro`, `contra`: regions with the largest parts of either sign. `rest`: of all else, among it `error` of the sum.
    `above`: their sum, by which the scan lies above the mean of its `controls`, which are `n` people.
    """

    pro: Mapping[str, float]
    contra: Mapping[str, float]
    rest: float
    error: float
    above: float
    controls: float
    n: int

    @property
    def evidence(self) -> float:
        return self.above + self.controls


def evidence_parts(run: RunRecord, scan: str) -> EvidenceParts | None:
    """The parts of a scan's evidence; None where the leading map has no unit in which regions add up."""
    accounts = [
        table for name in ("evidence", "evidence_applied") if scan in (table := _of_leading_map(run, name)).index
    ]
    if not run.leads_with_evidence or not accounts or scan not in regions_of_scans(run):
        return None
    account: Mapping[Any, Any] = accounts[0].loc[[scan]].iloc[0].to_dict()
    values = regions_of_scans(run)[scan].values
    parts = values.sort_values(key=lambda values: -values.abs(), kind="stable").round(2).rename(str)
    pro, contra = parts[parts > 0].head(LARGEST), parts[parts < 0].head(LARGEST)
    controls = round(float(account["reference_evidence"]), 2)
    above = round(float(account["evidence"]), 2) - controls
    rest, error = above - float(pro.sum() + contra.sum()), -float(account["completeness_error"])
    for_it, against = ({str(name): float(part) for name, part in of_sign.items()} for of_sign in (pro, contra))
    return EvidenceParts(for_it, against, rest, error, above, controls, int(account["n_reference"]))


def _of_leading_map(run: RunRecord, table: str) -> pd.DataFrame:
    """Rows of the leading map by scan."""
    if not run.has(table):
        return pd.DataFrame()
    rows = run.tables[table]
    return rows[rows["map"] == run.leading_map].set_index("scan_id")


def _sentence(run: RunRecord, scan: str, account: pd.Series, regions: ScanRegions) -> str:
    evidence, controls = round(account["evidence"], 2), round(account["reference_evidence"], 2)
    above, parts = evidence - controls, regions.values.round(2)
    pro, contra = (
        [f"{mid_sentence(group)} {signed(parts[group])}" for group in regions.largest if (parts[group] < 0) == negative]
        for negative in (False, True)
    )
    direction = "class" if run.task.classes else "number"
    where = [WORDS.say(f"for_{direction}", run=run, parts=pro)] * bool(pro)
    where += [WORDS.say(f"against_{direction}", run=run, parts=contra)] * bool(contra)
    places = {group: place_of(run, run.leading_map, group) for group in regions.headline}
    where += [WORDS.say("leader", group=group, place=place.bracket if place else "", part=parts[group])
              for group, place in places.items()]  # fmt: skip
    drawn = account.get("sampling_error", np.nan)
    return WORDS.say(
        "sentence",
        scan=scan,
        run=run,
        evidence=evidence,
        controls=controls,
        n=account["n_reference"],
        above=above,
        where=sentence_case("; ".join(where)),
        rest=above - parts[list(regions.named)].sum(),
        off=_sum_error(run, account["completeness_error"]),
        sampling="" if is_missing(drawn) or abs(drawn) < ROUNDED else WORDS.say("sampling", drawn=abs(drawn), run=run),
    )


ROUNDED = 0.005
"""An error below this does not show in a number of two decimals."""


def _sum_error(run: RunRecord, error: float) -> str:
    """How much of the rest is error of the sum; empty where it does not show."""
    return "" if abs(error) < ROUNDED else WORDS.say("off", error=-error)


def cautions_of_maps(run: RunRecord, regions: Collection[str] = ()) -> list[Caution]:
    """Cautions about every map of this run, for pages that show maps and name some regions."""
    scaled, small = scaled_by_probability(run), small_regions(run)
    found = [] if scaled is None else [replace(scaled, section="")]  # its section is on another page
    named = [f"{mid_sentence(group)}, {count(small[group], 'voxel')}" for group in regions if group in small]
    if named:
        text = (
            f"A slight misregistration moves relevance between a small region and its neighbours: {'; '.join(named)}."
        )
        found.append(Caution("note", "Some of the regions named here are small.", text))
    if run.is_synthetic:
        text = "A warped template brain with planted tissue loss: nothing here says anything about a disease."
        found.append(Caution("note", "A synthetic person.", text))
    return found
