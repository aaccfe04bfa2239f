"""``--parts representations``: what the frozen backbone of a run's probes knows of people it has not learned from.

``representations.tsv`` says how good several sets of features are, measured on the same people: those of the backbone,
and those of the same network before any training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import nn

from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS
from heatlas.pipeline.models.families.registry import build_network
from heatlas.pipeline.models.inputs import NetworkInput, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import FoldFiles
from heatlas.pipeline.run.layout.scan_files import ScanFiles
from heatlas.pipeline.run.work.seeds import derived_seed
from heatlas.studies.long_tail import LongTailedParts
from heatlas.studies.probes.network import Backbone, backbone_of, kept_stages
from heatlas.studies.probes.records import ProbeConfig, body_of
from heatlas.studies.representations.points import (
    FeatureVectors,
    Floats,
    alignments,
    contributions,
    effective_negatives,
    neighbours_agree,
    one_per_person,
    peak,
    points_of,
    uniformity,
)
from heatlas.studies.representations.probes import (
    ALL,
    FEW_SHOT,
    NEAREST,
    PERMUTATIONS,
    PROBES,
    SitePrediction,
    Statistic,
    draws_within,
    predicted_sites,
    probed,
    scored,
    shares_recognised,
)
from heatlas.studies.tables import declared

AGREEMENT, SITE = "neighbour_agreement", "site"
MEASURES = {
    **PROBES,
    AGREEMENT: "class of the most similar scan of anyone else in the test part",
    "alignment": "mean squared distance of two scans of a person, lower is better",
    "uniformity": "logarithm of the mean of exp(-2 d²) over pairs of people, lower is better",
    "contribution_peak": "similarity of the negatives that contribute most to the InfoNCE loss",
    "effective_negatives": "exp of the entropy of the softmax over negatives, mean over people",
    SITE: "site by a linear classifier, cross-validated by participant",
}
REPRESENTATIONS_TABLE = declared(
    "representations", measures="; ".join(f"{name}: {text}" for name, text in MEASURES.items())
)

NO_INTERVAL = "no interval: fewer than three people, or bootstrap draws that are all equal or not all defined"

TOO_SHORT = (
    "the interval takes the fitted classifiers as given and is too short: 8 to 14 % instead of 5 % miss the accuracy "
    "expected with so many people"
)
"""Note of the site (`tests/statistics/error_rates/null_sites.py`)."""


@dataclass(frozen=True, eq=False)
class _Measure:
    """One measure of all sets of features on the same people; `statistics` and `p` by the name of the features."""

    name: str
    statistics: Mapping[str, Statistic]
    weights: Floats
    counts: Mapping[str, int]
    chance: float = float("nan")
    n_training: int | None = None
    temperature: float = float("nan")
    p: Mapping[str, float] | None = None
    note: str | None = None

    def rows(self, reference: str) -> Iterator[dict[str, object]]:
        found = {name: scored(statistic, self.weights) for name, statistic in self.statistics.items()}
        for name, values in found.items():
            for group, value in values.items():
                low, high = value.interval
                row = {"features": name, "measure": self.name, "classes": group, "temperature": self.temperature}
                row |= {"estimate": value.value, "ci_low": low, "ci_high": high, "n_training": self.n_training}
                row |= {"n_participants": self.counts[group]}
                row |= {"note": self.note or (NO_INTERVAL if np.isfinite(value.value) and np.isnan(low) else None)}
                if group == ALL:
                    row |= {"chance": self.chance, "p": (self.p or {}).get(name, float("nan"))}
                if name != reference:
                    change = value - found[reference][group]
                    ends = dict(zip(("difference_low", "difference_high"), change.interval, strict=True))
                    row |= {"reference": reference, "difference": change.value, **ends}
                yield row


def judged(
    features: Mapping[str, ArrayLike],
    people: Sequence[str],
    labels: Sequence[object],
    parts: LongTailedParts,
    sites: Sequence[object] | None = None,
    *,
    temperatures: Sequence[float] = (0.1, 1.0),
    permutations: int = PERMUTATIONS,
    draws: int = DRAWS,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure several sets of features of the same scans: a table of `REPRESENTATIONS_TABLE`.

    `features`: (scans, d), by name, such as two checkpoints of a schedule; the number of features may differ. The first
    set is the reference of paired differences. `people`: participant of each scan. `labels`: class of each scan, one
    per participant; missing for people in no part. `parts`: whom probes are trained and tested on; all but the site is
    measured on the test part. `sites`: one per participant; predicted for all people. `temperatures`: of the InfoNCE
    loss. Measures that cannot be computed have a row with a note.
    """
    if not features:
        raise UsageError("no features to judge: give at least one set, by name.")
    points = {name: points_of(values, people) for name, values in features.items()}
    reference, first = next(iter(points.items()))
    class_of = one_per_person(labels, people, "diagnosis")
    tested = {person: name for name, members in parts.test.items() for person in members}
    trained = {person: name for name, members in parts.training.items() for person in members}
    if any(class_of.get(person) != name for person, name in (tested | trained).items()):
        raise BadInputError("column diagnosis: people of the parts have another class there; make the parts from it.")
    everyone = _probes(points, parts, tested, draws, seed)
    everyone += _properties({name: own.of(tested) for name, own in points.items()}, temperatures, tested, draws, seed)
    rows = [row for measure in everyone for row in measure.rows(reference)]
    if sites is not None:
        try:
            site_of = one_per_person(sites, people, "site")
            found = {name: predicted_sites(own, site_of, class_of, permutations, seed) for name, own in points.items()}
        except BadInputError as error:
            empty = {"measure": SITE, "classes": ALL, "n_participants": len(first.people), "note": str(error)}
            rows += [{"features": name, **empty} for name in points]
        else:
            rows += _of_sites(found, draws, seed).rows(reference)
    table = REPRESENTATIONS_TABLE.frame(rows)
    return table.astype({"n_participants": "Int64", "n_training": "Int64"})


def _probes(
    points: Mapping[str, FeatureVectors], parts: LongTailedParts, tested: Mapping[str, str], draws: int, seed: int
) -> list[_Measure]:
    trained = sum(map(len, parts.training.values()))
    there = [measure for measure in PROBES if NEAREST.get(measure, 0) <= trained]
    right = {name: probed(own, parts, there) for name, own in points.items()}
    of_test = {name: own.of(tested) for name, own in points.items()}
    for name, own in of_test.items():
        right[name][AGREEMENT] = neighbours_agree(own, tested)
    who = sorted(tested)
    classes = [tested[person] for person in who]
    weights = draws_within(who, classes, draws, seed)
    sizes = {name: len(members) for name, members in parts.test.items()}
    counts = {ALL: len(who)} | {name: sum(sizes[one] for one in own) for name, own in parts.groups.items()} | sizes
    number = dict.fromkeys(PROBES, trained) | {FEW_SHOT: parts.shots * len(parts.classes)}
    unknown = np.full(len(who), np.nan)
    return [
        _Measure(
            measure,
            {name: shares_recognised(own.get(measure, unknown), classes, parts.groups) for name, own in right.items()},
            weights, counts, chance=1 / len(parts.classes), n_training=number.get(measure),
            note=None if measure in there or measure == AGREEMENT else f"only {trained} people to train on",
        )
        for measure in (*PROBES, AGREEMENT)
    ]  # fmt: skip


def _properties(
    points: Mapping[str, FeatureVectors],
    temperatures: Sequence[float],
    tested: Mapping[str, str],
    draws: int,
    seed: int,
) -> list[_Measure]:
    who = sorted(tested)
    weights, counts = draws_within(who, [tested[person] for person in who], draws, seed), {ALL: len(who)}
    close = {name: alignments(vectors) for name, vectors in points.items()}
    repeated = int(np.isfinite(next(iter(close.values()))).sum())
    found = [
        _Measure(
            "alignment", {name: _mean(values) for name, values in close.items()}, weights, {ALL: repeated},
            note=None if repeated else "no one in the test part has two scans",
        ),
        _Measure("uniformity", {name: _named(uniformity(one)) for name, one in points.items()}, weights, counts),
    ]  # fmt: skip
    for temperature in temperatures:
        peaks, numbers = {}, {}
        for name, vectors in points.items():
            similar, same = vectors.similarities
            peaks[name] = _peak_of(vectors, similar, same, temperature)
            numbers[name] = _mean(vectors.mean(effective_negatives(similar, temperature, same)))
        found.append(_Measure("contribution_peak", peaks, weights, counts, temperature=temperature))
        found.append(_Measure("effective_negatives", numbers, weights, counts, temperature=temperature))
    return found


def _of_sites(found: Mapping[str, SitePrediction], draws: int, seed: int) -> _Measure:
    first = next(iter(found.values()))
    groups = {ALL: sorted(set(first.sites))}
    return _Measure(
        SITE,
        {name: _named(_all_of(shares_recognised(site.right, site.sites, groups))) for name, site in found.items()},
        draws_within(first.people, first.sites, draws, seed),
        {ALL: len(first.people)},
        chance=first.chance,
        p={name: prediction.p for name, prediction in found.items()},
        note=TOO_SHORT + (f"; {first.left_out} people left out: site unknown or too small" if first.left_out else ""),
    )


def _named(statistic: Callable[[Floats], Floats]) -> Statistic:
    return lambda weights: {ALL: statistic(weights)}


def _all_of(statistic: Statistic) -> Callable[[Floats], Floats]:
    return lambda weights: statistic(weights)[ALL]


def _mean(values: Floats) -> Statistic:
    there = np.isfinite(values)

    def mean(weights: Floats) -> Mapping[str, Floats]:
        total = weights[:, there].sum(axis=1)
        part = weights[:, there] @ values[there]
        return {ALL: np.divide(part, total, out=np.full(len(weights), np.nan), where=total > 0)}

    return mean


def _peak_of(vectors: FeatureVectors, similar: Floats, same: np.ndarray, temperature: float) -> Statistic:
    return _named(lambda w: peak(contributions(similar, temperature, same, w[:, vectors.codes] * vectors.weights)))


STAGE = "representations"
UNTRAINED, BACKBONE = "untrained", "backbone"


@dataclass(frozen=True)
class BackboneToJudge:
    """Input of the worker; picklable. All scans have a class."""

    scans: tuple[Scan, ...]
    files: tuple[ScanFiles, ...]
    networks: tuple[FoldFiles, ...]
    parts: LongTailedParts
    spec: NetworkInput
    config: Config


def write_judged(outputs: dict[str, Path], task: BackboneToJudge) -> None:
    loaded = [load_model(files).model for files in task.networks]
    bodies = [backbone_of(model) for model in loaded]
    if any(_differ(bodies[0], other) for other in bodies[1:]):
        raise BadInputError(
            "representations: each fold stands on a network of its own, which learned from labels. Run probes on one "
            "backbone of heatlas pretrain."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(task.config.seed, STAGE))
        assert isinstance(task.config.model, ProbeConfig)
        fresh = build_network(body_of(task.config.model), task.spec.shape, 2)
    untrained = Backbone(kept_stages(fresh, task.spec.shape, task.config.model.stages)[0])
    people = [scan.participant_id for scan in task.scans]
    sets = {UNTRAINED: untrained, BACKBONE: bodies[0]}
    points = {name: features(body, task.files, task.spec) for name, body in sets.items()}
    labels, sites = [scan.diagnosis for scan in task.scans], [scan.site for scan in task.scans]
    table = judged(points, people, labels, task.parts, sites, seed=task.config.seed)
    REPRESENTATIONS_TABLE.write(outputs["table"], table)


def _differ(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return any(not torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


@torch.inference_mode()
def features(body: nn.Module, files: Iterable[ScanFiles], spec: NetworkInput) -> Floats:
    """Means over voxels of the last features of scans, (scans, channels)."""
    body.eval()
    volumes = (torch.from_numpy(read_network_volume(one, spec))[None, None] for one in files)
    return np.array([body(volume).mean((2, 3, 4))[0].double().numpy() for volume in volumes])
