"""Data of the whole cohort for the pages of participants, prepared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from heatlas.pipeline.cohort.people.persons import name_of_person
from heatlas.pipeline.statistics.data.features import VOLUME
from heatlas.pipeline.statistics.data.values import with_shares
from heatlas.pipeline.statistics.normative.w_scores import ControlGroup, comparable_controls
from heatlas.reports.read.run_record import RunRecord

_ANSWER = ("fold", "probability", "probability_sd", "predicted", "predicted_sd", "outcome")
"""Columns of a prediction; ``predicted_sd`` is that of a number over the networks."""
UNLIKE = "unlike"


def likeness_of(run: RunRecord, scans: Sequence[str] | None = None) -> pd.DataFrame:
    """Rows of ``likeness.tsv``; of some scans only, where they are given."""
    if not run.has("likeness"):
        return pd.DataFrame(columns=["scan_id", "measure", "distance", "verdict"])
    table = run.tables["likeness"]
    return table if scans is None else table[table["scan_id"].astype(str).isin([str(scan) for scan in scans])]


def unlike_scans(run: RunRecord) -> set[str]:
    """Scans that are unlike those that the networks learned from, by their ids; pages fold what is said of these."""
    rows = likeness_of(run)
    return set(rows.loc[rows["verdict"] == UNLIKE, "scan_id"].astype(str))


@dataclass(frozen=True)
class ParticipantRecords:
    """Scans and relevance of all participants."""

    run: RunRecord
    _chosen: dict[tuple[str, str, str], ControlGroup | None] = field(default_factory=dict, repr=False)

    @cached_property
    def by_participant(self) -> dict[str, pd.DataFrame]:
        """`visits` of each participant."""
        return {str(name): rows for name, rows in self.visits.groupby("participant_id", sort=False)}

    @cached_property
    def visits(self) -> pd.DataFrame:
        """One row per kept scan, in order of visits: its facts and, where there is one, its prediction.

        ``applied`` marks scans outside the contrast, predicted by networks that were not trained on the participant.
        """
        scans = self.run.tables["scans"]
        scans = scans[scans["kept"].astype(bool)]
        known = []
        for rows, applied in ((self.run.predictions, False), (self.run.applied, True)):
            if rows is not None:
                rows = rows.rename(columns={"prediction": "predicted", "prediction_sd": "predicted_sd"})
                columns = [name for name in _ANSWER if name in rows]
                known.append(rows[["scan_id", *columns]].assign(applied=applied))
        if known:
            found = pd.concat(known, ignore_index=True).drop_duplicates("scan_id")
            scans = scans.merge(found, on="scan_id", how="left")
        for name in (*_ANSWER, "applied"):
            if name not in scans:
                scans = scans.assign(**{name: None})
        order = [name for name in ("participant_id", "age", "session_id") if name in scans]
        return scans.sort_values(order, kind="stable")

    @cached_property
    def _by_map(self) -> dict[str, pd.DataFrame]:
        """Evidence, or share of the map, by scan and bilateral group of the leading maps, labelled and applied scans.

        Not densities of other maps: these follow the strength of the whole map, and so the prediction.
        """
        names = [name for name in ("relevance_bilateral", "relevance_applied_bilateral") if self.run.has(name)]
        tables = [with_shares(self.run.tables[name]) for name in names]
        found = {}
        for name in self.run.main_maps:
            metric = "sum" if name in self.run.evidence_maps else "share"
            rows = [table[table["map"] == name][["scan_id", "group", metric]] for table in tables]
            if rows:
                frame = pd.concat(rows)
                wide = frame.pivot_table(index="scan_id", columns="group", values=metric, sort=False, dropna=False)
                found[name] = wide
        return found

    def values(self, map_name: str) -> pd.DataFrame:
        """Evidence, or share of the map, by scan (rows) and bilateral group (columns)."""
        return self._by_map.get(map_name, pd.DataFrame())

    @cached_property
    def _scores(self) -> dict[tuple[str, str], pd.DataFrame]:
        if not self.run.has("w_fingerprints"):
            return {}
        table = self.run.tables["w_fingerprints"]
        table = table[table["source"].isin([*self.run.main_maps, VOLUME])]
        grouped = table.groupby(["source", "participant_id"])
        return {
            (str(name), self._person[str(who)]): rows.groupby("group")[["w", "z"]].mean()
            for (name, who), rows in grouped
        }

    @cached_property
    def _person(self) -> Mapping[str, str]:
        scored = self.run.tables["w_fingerprints"]["participant_id"] if self.run.has("w_fingerprints") else ()
        return name_of_person([*self.visits["participant_id"], *scored])

    def scores(self, source: str, participant_id: str) -> pd.DataFrame:
        """Scores w and z by bilateral group, of a map or `VOLUME`, adjusted for covariates of the norm; or empty."""
        person = self._person[participant_id]  # statistics have one name per person
        return self._scores.get((source, person), pd.DataFrame(columns=["w", "z"], dtype=float))

    @cached_property
    def _controls(self) -> dict[str, pd.DataFrame]:
        """Mean evidence, or share of the map, per control."""
        rows = self.visits[(self.visits["label"] == self.run.negative) & self.visits["fold"].notna()]
        found = {}
        for name, wide in self._by_map.items():
            there = rows[rows["scan_id"].isin(wide.index)]
            values = wide.loc[there["scan_id"]].set_axis(pd.Index(there["participant_id"]), axis=0)
            found[name] = values.groupby(level=0).mean()
        return found

    @cached_property
    def _fold_of(self) -> dict[str, object]:
        rows = self.visits[self.visits["fold"].notna() & ~self.visits["applied"].fillna(False).astype(bool)]
        return dict(zip(rows["participant_id"], rows["fold"], strict=True))

    def controls(self, map_name: str, participant_id: str) -> ControlGroup | None:
        """Controls to compare a person with: those of the same test fold if there are enough, otherwise all.

        Networks of different folds have different scales of relevance.
        """
        values = self._controls.get(map_name)
        if values is None:
            return None
        fold = self._fold_of.get(participant_id)
        themselves = participant_id if participant_id in values.index else ""
        key = (map_name, str(fold), themselves)
        if key not in self._chosen:
            self._chosen[key] = comparable_controls(values, self._fold_of, fold, themselves, self.run.negative)
        return self._chosen[key]
