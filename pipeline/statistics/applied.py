"""Scans without labels against the controls of the run whose networks are applied to them.

Nobody has a label, so nothing can be right or wrong and no classes can be compared: the only statistics are scores
against the norms of the other run. Where a covariate of a scan is not known, its norm does without that covariate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from heatlas.pipeline.explaining.controls import read_norms
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.bundle_layout import Bundle, open_bundle
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.features import NO_FOLD, VOLUME, CovariateColumns, FoldedScans, region_features
from heatlas.pipeline.statistics.data.inputs import AppliedScans, inputs_of_run, read_applied
from heatlas.pipeline.statistics.data.values import joined
from heatlas.pipeline.statistics.normative.w_scores import (
    W_FINGERPRINTS_TABLE,
    W_SCORE_COLUMNS,
    W_SCORES_TABLE,
    Norm,
    fingerprint_table,
    norm_of,
)
from heatlas.pipeline.statistics.stage import NOTES_TABLE, STATISTICS_TABLES

CAUTIOUS = "mean over {:g} networks, scored against maps of single networks, which vary more: z is rather too small"
NO_LABELS = (
    "Not enough people of both classes have a label, so nothing can be right or wrong and no groups can be compared. "
    "Give a cohort with such labels for performance and group statistics."
)


@dataclass(frozen=True, eq=False)
class ControlNorms:
    """What is usual in the controls of a run, in one source (a map, or `VOLUME`).

    `groups`: bilateral groups. `values`: (controls, groups), one scan each. `frame`: facts of these scans. `formula`:
    covariates.
    """

    source: str
    groups: tuple[str, ...]
    values: Floats
    frame: pd.DataFrame
    formula: str
    min_freedom: int

    def for_scan(self, facts: pd.DataFrame) -> tuple[Norm, Floats, str | None]:
        """The norm of a scan, its covariates (1, n), and which of them had to be left out."""
        learned = CovariateColumns.of(self.formula, self.frame)
        unknown = learned.unknown(facts)[0]
        norm, covariates = norm_of(self.values, self.frame, self.formula, self.min_freedom, without=tuple(unknown))
        missed = {name: why for name, why in unknown.items() if name not in learned.dropped}  # constant: no loss
        note = f"norm without {', '.join(missed)} ({'; '.join(missed.values())})" if missed else None
        return norm, covariates.matrix(facts)[0], note


@dataclass(frozen=True, eq=False)
class SharedNorms:
    """The norms that an exported run gives away: mean and spread of its controls, whatever their age and sex."""

    source: str
    groups: tuple[str, ...]
    norm: Norm

    def for_scan(self, facts: pd.DataFrame) -> tuple[Norm, Floats, str | None]:
        """As of `ControlNorms`."""
        return self.norm, np.empty((1, 0)), "norm without covariates: an exported run holds means alone"


def compare_applied(layout: RunLayout, config: Config) -> list[Path]:
    """Write ``w_scores`` and ``w_fingerprints`` of scans without labels, and why there are no other tables.

    BadInputError if a table of this run is invalid.
    """
    for table in STATISTICS_TABLES:
        table.remove(layout)
    notes = [("performance", "performance, roc, calibration, group_comparisons, associations", NO_LABELS)]
    written, applied = [], read_applied(layout)
    if applied is not None:
        try:
            scores = applied_scores(layout, applied, list(norms_of_run(Path(config.training.networks_of))))
        except BadInputError as error:
            notes.append(("normative", f"{W_SCORES_TABLE.name}, {W_FINGERPRINTS_TABLE.name}", str(error)))
        else:
            written = [W_SCORES_TABLE.write(layout, scores)]
            written.append(W_FINGERPRINTS_TABLE.write(layout, fingerprint_table(scores)))
    return [*written, NOTES_TABLE.write(layout, notes)]


def norms_of_run(folder: Path) -> Iterator[ControlNorms | SharedNorms]:
    """The norms of a finished run, or of its export, by source; BadInputError if a table is missing or invalid."""
    if bundle := open_bundle(folder):
        yield from _norms_of_export(bundle)
        return
    inputs = inputs_of_run(RunLayout(folder))
    scans, config = FoldedScans.of(inputs), inputs.config
    settings = config.statistics.normative
    controls = scans.training(NO_FOLD) & (scans.frame["label"] == config.cohort.negative).to_numpy(bool)
    for source in scans.sources:
        formula = settings.volume_covariates if source.source == VOLUME else settings.relevance_covariates
        yield ControlNorms(
            source.source, source.groups, source.values[controls], scans.frame[controls].reset_index(drop=True),
            formula, settings.min_freedom,
        )  # fmt: skip


def _norms_of_export(bundle: Bundle) -> Iterator[SharedNorms]:
    table = read_norms(bundle)
    if table is None:
        raise BadInputError(f"{bundle.layout.norms}: not there; the exported run had no regions. Apply the run itself.")
    for name, rows in table.groupby("map", sort=False):
        mean, sd, n = (rows[column].to_numpy(float) for column in ("mean", "sd", "n_controls"))
        nothing: tuple[str | None, ...] = (None,) * len(rows)
        norm = Norm(mean[None], (1 / n)[:, None, None], np.where(sd > 0, sd, np.nan), n, n - 1, nothing)
        yield SharedNorms(str(name), tuple(rows["group"]), norm)


def applied_scores(layout: RunLayout, applied: AppliedScans, norms: list[ControlNorms | SharedNorms]) -> pd.DataFrame:
    """One row per scan, source and group; columns of `W_SCORE_COLUMNS`."""
    by_source = {source.source: source for source in region_features(applied.values, applied.volumes(layout))}
    frame, tables = applied.frame, []
    for usual in norms:
        if (
            usual.source not in by_source or np.isnan(by_source[usual.source].values).all()
        ):  # no volumes of an affine registration
            continue
        features = by_source[usual.source]
        place = [features.groups.index(group) if group in features.groups else -1 for group in usual.groups]
        for row in range(len(frame)):
            values = np.where(np.array(place) < 0, np.nan, features.values[row][place])[None]
            norm, covariates, left_out = usual.for_scan(frame.iloc[[row]])
            w, z = norm.scores(values, covariates)
            networks = frame["n_networks"].iloc[row]
            mean = CAUTIOUS.format(networks) if usual.source != VOLUME and networks > 1 else None
            notes = [joined(problem, "no value" if np.isnan(value) else None, left_out, mean)
                     for problem, value in zip(norm.problems, values[0], strict=True)]  # fmt: skip
            facts = frame.iloc[row][["participant_id", "session_id", "scan_id"]].to_dict()
            tables.append(pd.DataFrame({
                **facts, "label": None, "fold": NO_FOLD, "source": usual.source, "group": usual.groups, "w": w[0],
                "z": z[0], "note": notes,
            }))  # fmt: skip
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(W_SCORE_COLUMNS))
