"""Whether answer and map followed when a tenth of a region was taken out of a person's scan, as badges beside the map.

`pipeline.explaining.planted_in_scan` says what was done, and holds the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from heatlas.pipeline.explaining.planted_in_scan import NEAR_MM
from heatlas.reports.frame.tables import PageTable, page_table, worded_columns
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import mid_sentence, number, sentence_case, shortened
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)
_VERDICTS = {(True, True): "both", (True, False): "answer", (False, True): "map", (False, False): "neither"}


@dataclass(frozen=True)
class Badge:
    """What followed in one scan and region; `followed`: answer and map did."""

    title: str
    text: str
    followed: bool


@dataclass(frozen=True)
class PlantedInScans:
    """Badges of some scans, and the changes at all places."""

    badges: tuple[Badge, ...]
    rule: str
    places: PageTable


def planted_in(run: RunRecord, scans: Collection[str]) -> PlantedInScans | None:
    """What was planted in some scans; None where nothing was."""
    if not run.has("planted_in_scan"):
        return None
    table = run.tables["planted_in_scan"]
    table = table[table["scan_id"].astype(str).isin([str(scan) for scan in scans])]
    asked = table[table["planted"] == table["name"]]
    if asked.empty:
        return None
    several = asked["scan_id"].nunique() > 1
    badges = tuple(_badge(run, row, several) for row in asked.to_dict("records"))
    columns = worded_columns(WORDS, "places")[0 if several else 1 :]
    return PlantedInScans(badges, WORDS.say("rule"), page_table(table, columns, WORDS.say("places")))


def _badge(run: RunRecord, row: Mapping[Any, Any], several: bool) -> Badge:
    answer, of_map = _is_true(row["answer_followed"]), _is_true(row["map_followed"])
    evidence = row["map"] in run.evidence_maps
    one = row["n_networks"] == 1
    spread = "" if one else WORDS.say(
        "spread", networks=int(row["n_networks"]), low=_signed(row["ci_low"]), high=_signed(row["ci_high"])
    )  # fmt: skip
    fewer = int(row["places"] - row["as_large"])
    text = WORDS.say(
        "text", volume=row["volume_mm3"], what=run.task.words.evidence if evidence else "answer",
        change=_signed(row["change"]), unit=f" {run.evidence_unit}" * evidence, spread=spread, fewer=fewer,
        places=int(row["places"]), of_region=_signed(row["region_change"]), place=int(row["place"]),
        regions=int(row["n_regions"]), share=row["share"], image=row["image_share"], NEAR_MM=NEAR_MM,
    )  # fmt: skip
    scan = f", {shortened(row['scan_id'])}" * several
    name = sentence_case(mid_sentence(row["name"]))
    title = WORDS.say("title", name=name, scan=scan, verdict=WORDS.all["verdicts"][_VERDICTS[answer, of_map]])
    return Badge(title, text, answer and of_map)


def _is_true(cell: object) -> bool:
    return str(cell).lower() == "true"


def _signed(value: float) -> str:
    return f"{'+' * (value > 0)}{number(value, 2)}"
