"""Everything the report reads from a run folder: settings, tables, training histories. Nothing else is read.

The exception is what was planted in synthetic people, which lies with the input.

A run may have stopped after any stage. A table that is not there, has no rows, is damaged or was written by another
version of Heatlas is absent from the record, and the sections that need it say so. Messages name files as seen from
the run folder, since they stand on the page.

The leading map of a report is the one that the evaluation passed, or else the one that shows evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import maps_to_lead
from heatlas.pipeline.cohort.cells.values import number
from heatlas.pipeline.cohort.people.tasks import KindName, Task, task_of
from heatlas.pipeline.cohort.reading import PLANTED
from heatlas.pipeline.evaluation.planted import read_planted
from heatlas.pipeline.explaining.stage import STAGE as EXPLAINED
from heatlas.pipeline.models.families.registry import is_given
from heatlas.pipeline.regions.tables import ALL
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.declared import warn_once
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import BadInputError, HeatlasError
from heatlas.pipeline.run.layout.folder import RunInput, read_run_config, read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import GUIDED_MAP, ScanFiles, beta_of, map_names
from heatlas.pipeline.run.plain_text import counted, listed, without_folders
from heatlas.pipeline.run.tables import REMEDY
from heatlas.pipeline.run.work.jobs import step_outputs
from heatlas.reports.read.run_files import (
    APPLIED_OF,
    HISTORIES_OF,
    MAKE_AGAIN,
    PREDICTIONS_OF,
    TABLES,
    bad_cell,
    cut_row,
    of_another_version,
    read_checked,
    tables_of,
)

OUTCOMES = ("TP", "FP", "TN", "FN")
KEYS = ["participant_id", "scan_id"]

FOUNDATIONS = ("scans", *PREDICTIONS_OF.values(), "relevance_bilateral")
"""Tables that those after them in `TABLES` are made from: without one the run counts as stopped before it."""
WRITTEN_BEFORE: Mapping[str, Collection[str]] = {
    "scans": ("registration",),
    "splits": ("predictions",),
    "registration": ("volumes", "predictions"),
    "predictions": ("conservation", "performance"),
    "conservation": ("relevance_bilateral",),
    "relevance_bilateral": ("region_summary",),
}
"""Tables that must be there if one of these is."""

SENTENCES = ("flags", "message", "note", "reason")
"""Columns of sentences, which may name a file by its path on the machine of the run; pages do without the folders."""


def group_name(group: str) -> str:
    """Name of a group of scans that has a mean map."""
    return "all scans" if group == ALL else group


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What is known of a run."""

    layout: RunLayout
    config: Config
    source: RunInput  # input folder and preset
    tables: Mapping[str, pd.DataFrame]  # those of `TABLES` that exist, and have rows and all their columns
    # Per table that exists and cannot be used, and per JSON file, a sentence with what is wrong and the remedy
    unreadable: Mapping[str, str]
    histories: Mapping[int, pd.DataFrame]  # training history by fold
    models: Mapping[int, Mapping[str, Any]]  # description of each fold's network
    provenance: Mapping[str, Any]
    changed: Sequence[str] = ()  # a sentence for each table that is not as the run wrote it, yet can be read

    def has(self, *names: str) -> bool:
        """Whether all these tables have rows; ``histories`` stands for the training of at least one fold."""
        return all(name in self.tables or (name == "histories" and bool(self.histories)) for name in names)

    def why_absent(self, *names: str, otherwise: str = "") -> str:
        """Why some of these tables are not in the record, as far as they are in the folder; else `otherwise`."""
        return " ".join(dict.fromkeys(self.unreadable[name] for name in names if name in self.unreadable)) or otherwise

    @property
    def task(self) -> Task:
        return task_of(self.config.cohort)

    @property
    def is_given(self) -> bool:
        """Whether its networks were used as they are."""
        return is_given(self.config)

    @property
    def without_labels(self) -> bool:
        """Whether networks of another run were applied to people of whom none has a label."""
        applied = bool(self.config.training.networks_of) and self.has("scans")
        return applied and bool(self.tables["scans"]["label"].isna().all())

    @property
    def region_sums(self) -> pd.DataFrame:
        """Relevance by bilateral group: of labelled scans, or without any of those that networks were applied to."""
        names = ("relevance_bilateral", "relevance_applied_bilateral")
        return next((self.tables[name] for name in names if self.has(name)), pd.DataFrame())

    @property
    def may_have_seen(self) -> bool:
        """Whether a network of the user's own may have been trained with these people."""
        return not getattr(self.config.model, "unseen", True)

    @property
    def trained_with(self) -> str:
        """Words for whom networks were trained with that are applied to people of another cohort."""
        return "elsewhere, perhaps with these people" if self.may_have_seen else "on other people"

    @property
    def in_whom(self) -> str:
        """Words for the people who were predicted."""
        return "who may have been in its training" if self.may_have_seen else "they had not seen"

    @property
    def predicted(self) -> str:
        """A sentence on whose networks predicted each scan."""
        if self.may_have_seen:
            return "Each scan was predicted by a network that was trained elsewhere, perhaps with the same people."
        neither = "had seen neither the scan nor any other scan of the same participant"
        return f"Each scan counted here was predicted by a network that {neither}."

    @property
    def negative(self) -> str:
        return self.config.cohort.negative

    @property
    def positive(self) -> str:
        return self.config.cohort.positive

    @property
    def labels(self) -> tuple[str, str]:
        """Positive class first, as in the figures of the founding study."""
        return self.positive, self.negative

    @property
    def predictions(self) -> pd.DataFrame | None:
        """Out-of-fold predictions of this run's task; None while there are none."""
        return self.tables.get(PREDICTIONS_OF[self.task.kind.name])

    @property
    def applied(self) -> pd.DataFrame | None:
        """What networks predicted of scans without a label; None where there are none."""
        return self.tables.get(APPLIED_OF[self.task.kind.name])

    @property
    def map_groups(self) -> tuple[str, ...]:
        """Groups of scans that have mean maps besides the outcomes, the one that sets the colours first."""
        if len(self.task.classes) > 2:
            return self.positive, f"not {self.positive}"
        return self.labels if self.task.classes else (ALL,)

    def in_words(self, group: str) -> str:
        """A class or group inside a sentence: a number alone, as ``0.5``, would not say of what."""
        label = group.removeprefix("not ")
        return group if number(label) is None else group.replace(label, f"{self.task.column} {label}")

    @property
    def is_synthetic(self) -> bool:
        """Whether the people of this run are not real: the demo, or a cohort that comes with planted truth."""
        stated = self.provenance.get("sources", {}).get("synthetic")
        if stated is not None:
            return bool(stated)
        truth = (TABLES["planted_recovery"].path(self.layout), self.source.input / PLANTED)
        return any(path.is_file() for path in truth)

    @cached_property
    def planted(self) -> tuple[str, ...]:
        """The planted regions, bilateral groups with planted disease; empty for real people, or without the input."""
        path = self.source.input / PLANTED
        return tuple(read_planted(path)) if path.is_file() else ()

    @cached_property
    def map_names(self) -> tuple[str, ...]:
        """Maps that this run makes, LRP by rising beta first."""
        settings = self.config.attribution
        return tuple(map_names(replace(settings, betas=tuple(sorted(settings.betas)))))

    @property
    def resolution_mm(self) -> float:
        return self.config.registration.resolution_mm

    def files_of(self, row: Mapping[Any, Any] | pd.Series) -> ScanFiles:
        """Files of a scan, by a row with its participant and session."""
        session = None if pd.isna(row["session_id"]) else str(row["session_id"])
        return self.layout.scan(str(row["participant_id"]), session, self.resolution_mm)

    @property
    def keeps_mean_maps(self) -> bool:
        return self.config.attribution.keep_maps != "none"

    @property
    def keeps_single_maps(self) -> bool:
        return self.config.attribution.keep_maps == "all"

    @property
    def lrp_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.map_names if beta_of(name) is not None)

    @cached_property
    def evidence_maps(self) -> tuple[str, ...]:
        """Maps of evidence relative to controls, whose sums over regions are in logits."""
        table = self.region_sums
        if "evidence" not in table:
            return ()
        known = set(table.loc[table["evidence"].notna(), "map"])
        return tuple(name for name in self.map_names if name in known)

    @cached_property
    def leading_map(self) -> str:
        """The map of the headline; see `reports.read.run_record`."""
        return leading_map(self.map_names, self.evidence_maps, self.tables.get("verdicts"))

    @cached_property
    def main_maps(self) -> tuple[str, ...]:
        """The leading map, LRP with the smallest beta, guided backpropagation: those that the run makes."""
        founding = (*self.lrp_names[:1], *(name for name in self.map_names if name == GUIDED_MAP))
        return tuple(dict.fromkeys((self.leading_map, *founding)))

    @cached_property
    def ordered_maps(self) -> tuple[str, ...]:
        """All maps of the run, the leading one first."""
        return tuple(dict.fromkeys((self.leading_map, *self.map_names)))

    @property
    def leads_with_evidence(self) -> bool:
        return self.leading_map in self.evidence_maps

    @property
    def evidence_unit(self) -> str:
        """Unit of evidence: of a class, logits; of a number, its standard deviation in training, unless that is 1."""
        scales = {model.get("objective", {}).get("target_sd") for model in self.models.values()}
        return f"units of {self.task.column}" if scales == {1.0} else self.task.words.unit

    def map_unit(self, map_name: str) -> str:
        """What the values of a map are."""
        if map_name in self.evidence_maps:
            return f"evidence ({self.evidence_unit})"
        return "susceptibility" if map_name == GUIDED_MAP else "relevance"

    @cached_property
    def group_sizes(self) -> Mapping[str, tuple[int, int]]:
        """Scans and participants behind each group map: `map_groups` and the four outcomes."""
        if self.predictions is None:
            return {}
        frame = self.explained
        if not self.task.classes:
            return {ALL: (len(frame), frame["participant_id"].nunique())}
        first, second = self.map_groups
        members = {first: frame["label"] == first, second: frame["label"] != first}
        members |= {name: frame["outcome"] == name for name in OUTCOMES}
        return {
            name: (int(there.sum()), frame.loc[there, "participant_id"].nunique()) for name, there in members.items()
        }

    @cached_property
    def explained(self) -> pd.DataFrame:
        """Predictions of the scans that have heatmaps; all predictions while there are none."""
        found = pd.DataFrame(columns=KEYS) if self.predictions is None else self.predictions
        if not self.has("relevance_bilateral"):
            return found
        return found.merge(self.tables["relevance_bilateral"][KEYS].drop_duplicates(), on=KEYS)

    @cached_property
    def region_values(self) -> pd.DataFrame:
        """Relevance per scan, map and bilateral group, with the label and outcome of the scan."""
        predictions = self.explained
        if not self.task.classes:
            predictions = predictions.assign(label=ALL, outcome=None)
        return self.tables["relevance_bilateral"].merge(predictions[[*KEYS, "label", "outcome", "fold"]], on=KEYS)


def read_run(layout: RunLayout) -> RunRecord:
    """Read a run folder.

    UsageError if the folder is not a run, or its configuration is damaged.
    """
    config, source = read_run_config(layout), read_run_input(layout)
    kind = task_of(config.cohort).kind.name
    tables, unreadable, foundation = {}, _missing(layout, kind), ""
    for name, table in tables_of(kind).items():
        if name in HISTORIES_OF.values():  # one per fold, read below
            continue
        path = table.path(layout)
        if name in unreadable:
            foundation = unreadable[name] if name in FOUNDATIONS else foundation
        elif path.is_file():
            frame, wrong = (pd.DataFrame(), foundation) if foundation else read_usable(layout, name, path, config)
            if wrong := wrong or table.outdated(layout):
                unreadable[name] = wrong
                foundation = wrong if name in FOUNDATIONS else foundation
            elif len(frame):
                tables[name] = frame
    _take_out_cut(layout, kind, tables, unreadable)
    histories, models, current = {}, {}, _current_folds(tables)
    for folder in sorted((layout.root / "models").glob("fold-*")):
        index = folder.name.removeprefix("fold-")
        if index not in current:
            continue
        files = layout.fold(int(index))
        if files.history.is_file() and files.description.is_file():
            frame, wrong = read_usable(layout, HISTORIES_OF[kind], files.history, config)
            if wrong:
                unreadable["histories"] = wrong
            else:
                histories[int(index)] = frame
        if files.description.is_file():
            models[int(index)] = _json(layout, files.description, unreadable)
    provenance = _json(layout, layout.provenance, unreadable)
    return RunRecord(
        layout, config, source, tables, unreadable, histories, models, provenance, _changed(layout, tables)
    )


def _changed(layout: RunLayout, names: Iterable[str]) -> list[str]:
    """That tables are not as the run wrote them, a sentence each, which are logged as well."""
    changed = [sentence for name in names if (sentence := TABLES[name].not_as_written(layout))]
    for sentence in changed:
        warn_once(f"{layout.root}: {sentence}")
    return changed


def _missing(layout: RunLayout, kind: KindName) -> dict[str, str]:
    """Tables that the run has written and that are gone, by name, or by file where the report does not read them."""
    names = {table.path(layout): name for name, table in tables_of(kind).items()}
    written = [
        TABLES[name].path(layout)
        for name, later in WRITTEN_BEFORE.items()
        if any(TABLES[other].path(layout).is_file() for other in later)
    ]
    written += [path for path in step_outputs(layout) if path.suffix == ".tsv"]
    gone = {path: path.relative_to(layout.root).as_posix() for path in written if not path.is_file()}
    return {names.get(path, file): f"{file} is missing. {MAKE_AGAIN}" for path, file in gone.items()}


def _take_out_cut(
    layout: RunLayout, kind: KindName, tables: dict[str, pd.DataFrame], unreadable: dict[str, str]
) -> None:
    """Take out a table that lacks scans which it must have by another one, and all tables after it."""
    predictions = PREDICTIONS_OF[kind]
    must_have = [("scans", "registration"), ("scans", predictions), (predictions, "relevance_bilateral")]
    for whole, other in (*must_have, ("relevance_bilateral", predictions)):
        path = TABLES[whole].path(layout)
        if other not in tables or not path.is_file():
            continue
        there = set(tables[whole]["scan_id"]) if whole in tables else set()
        lacking = tables[other][~tables[other]["scan_id"].isin(there)].drop_duplicates("scan_id")
        if whole == "relevance_bilateral":  # a scan that could not be explained has no sums
            failed = set(tables["failures"]["unit"]) if "failures" in tables else set()
            lacking = lacking[[_is_explained(layout, row, failed) for row in lacking.to_dict("records")]]
        if len(lacking):
            file, source = (TABLES[name].path(layout).relative_to(layout.root).as_posix() for name in (whole, other))
            names = listed(lacking["scan_id"], 3)
            wrong = f"{file}: lacks {counted(len(lacking), 'scan')} that {source} has ({names}). {REMEDY}"
            for name in list(TABLES)[list(TABLES).index(whole) :]:
                if tables.pop(name, None) is not None or name == whole:
                    unreadable[name] = wrong
            return


def _is_explained(layout: RunLayout, row: Mapping[Any, Any], failed: Collection[str]) -> bool:
    """Whether a scan that did not fail (a receipt may be of an earlier time) has a receipt for its maps."""
    unit = "_".join(str(row[name]) for name in ("participant_id", "session_id") if not pd.isna(row[name]))
    return unit not in failed and layout.receipt(EXPLAINED, unit).is_file()


def read_usable(layout: RunLayout, name: str, path: Path, config: Config) -> tuple[pd.DataFrame, str]:
    """A table of the run and, where the report cannot use it, why.

    `name`: of `reports.read.run_files.TABLES`.
    """
    file = path.relative_to(layout.root).as_posix()
    try:
        frame = read_checked(name, path)
        wrong = cut_row(path, file)
    except HeatlasError as error:
        return pd.DataFrame(), f"{str(error).replace(str(path), file)} {REMEDY}"
    except OSError as error:
        return pd.DataFrame(), f"{file}: cannot be read ({error.strerror}). Make it readable, then repeat the report."
    if wrong or not len(frame):
        return pd.DataFrame(), wrong
    wrong = of_another_version(name, file, frame) or bad_cell(name, file, frame, config)
    said = {} if wrong else {column: frame[column].map(_private) for column in SENTENCES if column in frame}
    return frame.assign(**said), wrong


def _current_folds(tables: Mapping[str, pd.DataFrame]) -> set[str]:
    """Folds of this configuration that did not fail; models of an earlier one may still lie in the folder."""
    if "splits" not in tables:
        return set()
    folds = {str(int(fold)) for fold in tables["splits"]["fold"].dropna()}
    if "failures" in tables:
        failures = tables["failures"]
        folds -= {unit.removeprefix("fold-") for unit in failures.loc[failures["stage"] == "training", "unit"]}
    return folds


def _private(value: Any) -> Any:
    """A cell, or the content of a JSON file, without the folders of absolute paths."""
    if isinstance(value, dict):
        return {key: _private(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_private(entry) for entry in value]
    return without_folders(value) if isinstance(value, str) else value


def _json(layout: RunLayout, path: Path, unreadable: dict[str, str]) -> Mapping[str, Any]:
    """Content of a JSON file; empty where there is none, or none that can be read, which is written down."""
    file = path.relative_to(layout.root).as_posix()
    if not path.exists():
        return {}
    try:
        return {key: _private(value) for key, value in read_json(path, REMEDY).items()}
    except BadInputError as error:
        unreadable[file] = str(error).replace(str(path), file)
        return {}


def leading_map(names: Sequence[str], evidence: Collection[str], verdicts: pd.DataFrame | None) -> str:
    """The first of the maps that may lead (`maps_to_lead`) that passed the evaluation; without one, the first.

    `verdicts`: ``verdicts.tsv``; None where the run was not evaluated.

    Examples
    --------
    >>> verdicts = pd.DataFrame({"map": ["deeplift", "expectedGradients"], "passed": [True, False]})
    >>> leading_map(["lrpB000", "deeplift", "expectedGradients"], verdicts["map"].tolist(), verdicts)
    'deeplift'
    """
    candidates = maps_to_lead(names, evidence)
    return next((name for name in candidates if has_passed(verdicts, name)), candidates[0])


def has_passed(verdicts: pd.DataFrame | None, name: str) -> bool | None:
    """Whether a map passed on every cohort where anything could be asked; None where nothing is known.

    Examples
    --------
    >>> table = pd.DataFrame({"map": ["gb", "gb", "lrpB000"], "passed": ["true", None, "false"]})
    >>> has_passed(table, "gb"), has_passed(table, "lrpB000"), has_passed(table, "occlusion"), has_passed(None, "gb")
    (True, False, None, None)
    """
    if verdicts is None:
        return None
    known = verdicts.loc[verdicts["map"] == name, "passed"].dropna()
    return None if known.empty else bool(known.astype(str).str.lower().eq("true").all())
