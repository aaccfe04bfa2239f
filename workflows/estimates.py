"""The families of networks (``heatlas models``), and how long a run takes here, with how much memory and disk.

Training and maps are estimated from one step of the configured network, which is timed here. Registration has the
seconds of a core that were measured for the documentation (docs/benchmarks/registration.md, docs/patients.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.cohort.people.splits import Split
from heatlas.pipeline.cohort.reading import InputCohort
from heatlas.pipeline.models.families.family import NO_BACKBONE, Family
from heatlas.pipeline.models.families.registry import (
    FAMILIES,
    build_network,
    family_of,
    is_given,
    is_solved,
    on_backbone,
    parameter_count,
)
from heatlas.pipeline.models.inputs import configured_input
from heatlas.pipeline.registration.ants_transform import AFFINE, AFFINE_TORCH, TO_4MM
from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.config.settings import Config, RegistrationConfig
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import map_names, names_of, settings_for
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.plugins import origin
from heatlas.workflows.commands import Models

_QUICK = (2.0, 137.0)
REGISTRATION_SECONDS = {
    **dict.fromkeys((AFFINE, AFFINE_TORCH), (1.6, 27.0)),
    "syn-quick": _QUICK, "antsRegistrationSyNQuick[s]": _QUICK, "antsRegistrationSyNQuickRepro[s]": _QUICK,
    TO_4MM: (9.0, 40.0),
    "syn": (101.0, 49.0),
}  # fmt: skip
"""Seconds of a core for a scan: a part that does not depend on the grid, and a part for a grid of 1 mm."""
N4_SECONDS = 20.0
LARGEST_TIMED = 500_000
"""Voxels of the volume on which a step is timed; larger grids are estimated from a smaller one."""
SMALL_COHORT = 500
_WORTH_PARTS = 300.0
"""Seconds of a run from which on its stages are told apart, to the minute."""


@dataclass(frozen=True)
class TrainingStep:
    """One forward and backward pass of one scan on one core."""

    seconds: float
    memory: float  # bytes of what autograd keeps


@dataclass(frozen=True)
class ResourceEstimate:
    """What a run takes: seconds of the clock by stage, bytes of memory of a worker and of disk at the end."""

    seconds: dict[str, float]
    memory: float
    disk: float

    def in_words(self, workers: int) -> str:
        """Say it in a line; the stages only where they differ from the whole and from each other.

        >>> ResourceEstimate({"maps": 121.0, "training": 7300.0}, 1.2e9, 4.35e8).in_words(2)
        'about 2.1 h on 2 idle cores (maps 2 min, training 2.0 h), 1.2 GB of memory each, 0.4 GB of disk'
        """
        spans = [f"{stage} {_span(value)}" for stage, value in self.seconds.items()]
        seconds = sum(self.seconds.values())
        parts = f" ({', '.join(spans)})" if len(spans) > 1 and seconds >= _WORTH_PARTS else ""
        return (
            f"about {_span(seconds)} on {counted(workers, 'idle core')}{parts}, {self.memory / 1e9:.1f} GB of memory "
            f"each, {max(self.disk / 1e9, 0.1):.1f} GB of disk"
        )


def expectations(config: Config, cohort: InputCohort, split: Split, stages: Sequence[str], workers: int) -> list[str]:
    """Sentences on what a run takes from its start, and on what suits its people."""
    timed = [stage for stage in ("registration", "training", "attribution") if stage in stages]
    if not timed or on_backbone(config.model) is not NO_BACKBONE or config.training.device == "cuda":
        return []  # probes need their backbone, and a GPU is elsewhere or cannot be timed beside its workers
    step = None if timed == ["registration"] else measured_step(config)
    labelled = {scan.participant_id for scan in cohort.table.labelled}
    per_person = len(cohort.table.labelled) / max(len(labelled), 1)
    trained = [round(len(fold.train) * per_person) for fold in split.folds]
    kept, placed = cohort.table.kept, sum(scan.entry == "template" for scan in cohort.table.kept)
    estimate = made_of(config, len(kept), len(cohort.table.labelled), trained, timed, step, workers, placed)
    unknown = not_estimated(config) if "attribution" in stages else []
    but = f"; maps by {', '.join(unknown)} come on top" if unknown else ""
    return [f"takes {estimate.in_words(workers)}, and minutes for statistics and report{but}", *advice(config, cohort)]


def made_of(
    config: Config, kept: int, labelled: int, trained: Sequence[int], stages: Sequence[str], step: TrainingStep | None,
    workers: int, placed: int = 0,
) -> ResourceEstimate:  # fmt: skip
    """The estimate from counts: scans kept and labelled, those each fold trains with, and one timed step.

    `placed`: kept scans that lie in template space already; to copy one takes a moment.
    """
    settings, voxels = config.training, math.prod(configured_grid(config.registration).shape)
    seconds, registered = {}, (kept - placed) * ("registration" in stages)
    if registered:
        seconds["registration"] = rounds(registered, workers) * registration_seconds(config)
    if step is not None and "training" in stages:
        networks = len(trained) * settings.repeats * settings.ensemble
        # Validation has a quarter as many scans, forward only; a network that is solved sees each scan about once.
        once = is_solved(config.model) or is_given(config)
        epochs = 1.0 if once else settings.max_epochs * (1 + 1 / 3 * 1 / 4)
        stage = "prediction" if is_given(config) else "training"
        seconds[stage] = rounds(networks, workers) * max(trained, default=0) * epochs * step.seconds
    if step is not None and "attribution" in stages:
        # Networks of another run are all asked about everybody; else those of one fold about people with labels.
        explained, folds = (kept, len(trained)) if settings.networks_of else (labelled, 1)
        steps = folds * settings.ensemble * steps_of_maps(config)
        seconds["maps"] = rounds(explained, workers) * steps * step.seconds
    memory = 0.7e9 + (0.0 if step is None else step.memory * settings.batch_size * 1.5)
    if registered:
        memory = max(memory, 0.7e9 + 330.0 * voxels)  # ANTs: some forty images in single and double precision
    return ResourceEstimate(seconds, memory, kept * bytes_kept(config, voxels, "attribution" in stages))


def rounds(units: int, workers: int) -> int:
    """How often all workers are busy one after the other."""
    return math.ceil(units / max(workers, 1))


def registration_seconds(config: Config) -> float:
    settings = config.registration
    fixed, of_grid = REGISTRATION_SECONDS.get(settings.transform, REGISTRATION_SECONDS["syn"])
    return fixed + of_grid / settings.resolution_mm**3 + N4_SECONDS * settings.bias_correction


def steps_of_maps(config: Config) -> float:
    """Forward and backward passes that the maps of a scan cost, of the methods whose cost is known."""
    asked = config.attribution
    maps = {name: len(names_of(name, settings_for(name, asked.settings), asked.betas)) for name in asked.methods}
    return sum((find_method(name).steps or 0.0) * count for name, count in maps.items())


def not_estimated(config: Config) -> list[str]:
    return [name for name in config.attribution.methods if find_method(name).steps is None]


def bytes_kept(config: Config, voxels: int, with_maps: bool) -> float:
    """On disk for a scan when the run is done (measured on the demo and on OASIS-1)."""
    of_registration = 1.0 + (0.0 if config.registration.affine_only else 16.7)
    kept = with_maps and config.attribution.keep_maps == "all"
    names = len(map_names(config.attribution))
    return 1e6 + voxels * (of_registration + (1.2 * names + 1.5 if kept else 0.0))


def measured_step(config: Config) -> TrainingStep:
    """Time forward and backward of the configured network on one core, best of two, and add up what it keeps.

    The time is that of the processor, whatever else runs on it: the run will begin when it is idle.
    """
    import torch  # takes a second

    spec = configured_input(config)
    shape = spec.shape
    timed, family = _timed_shape(shape, config), family_of(config.model)
    threads, used = torch.get_num_threads(), max(config.training.threads, 1)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    try:
        torch.set_num_threads(used)
        with torch.random.fork_rng(devices=[]):
            family.require_fits(timed, config.model)
            network = build_network(config.model, timed, 2, spec.channels).train()
            volume, seconds = torch.rand(2, spec.channels, *timed), math.inf
            volume.requires_grad_(is_given(config))  # the weights of such networks are held
            for _ in range(2):
                began = time.process_time()
                with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                    answer = network(volume)
                answer.sum().backward()
                seconds = min(seconds, (time.process_time() - began) / used / len(volume))
    finally:
        torch.set_num_threads(threads)
    ratio = math.prod(shape) / math.prod(timed)
    return TrainingStep(seconds * ratio, sum(kept.values()) / 2 / len(volume) * ratio)


def advice(config: Config, cohort: InputCohort) -> list[str]:
    """What to choose for the people that are there."""
    people = len({scan.participant_id for scan in cohort.table.labelled})
    if not 0 < people < SMALL_COHORT or config.registration.resolution_mm > 1:
        return []
    return [
        f"{people} people at {config.registration.resolution_mm:g} mm: below {SMALL_COHORT}, --preset patients "
        "takes a small part of the time, and networks on finer images were no better with 133 people (docs/patients.md)"
    ]


def _timed_shape(shape: tuple[int, int, int], config: Config) -> tuple[int, int, int]:
    """The grid, or a smaller one of the same proportions that the network still takes."""
    family, factor = family_of(config.model), (LARGEST_TIMED / math.prod(shape)) ** (1 / 3)
    if factor >= 1:
        return shape
    left, back, top = (family.covering_side(round(side * factor), config.model) for side in shape)
    return (left, back, top) if left * back * top < math.prod(shape) else shape


def _span(seconds: float) -> str:
    """Say how long something takes.

    >>> [_span(20), _span(400), _span(9000), _span(400_000)]
    ['1 min', '7 min', '2.5 h', '4.6 days']
    """
    if seconds < 5400:
        return f"{max(round(seconds / 60), 1)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


RESOLUTIONS = (1.0, 2.0)
"""Default resolutions of template space in mm."""


def models_command(options: Models) -> int:
    resolutions = RESOLUTIONS if options.resolution is None else (options.resolution,)
    for family in FAMILIES.values():
        print(family.name)
        for heading, text in described(family, resolutions):
            print(f"  {heading:<17} {text}")
    print('Choose one by architecture = "NAME" under [model] in the file for --config.')
    return EXIT_OK


def described(family: Family, resolutions: tuple[float, ...]) -> Iterator[tuple[str, str]]:
    """Description of a family, as pairs of heading and text."""
    network = family.settings(architecture=family.name)
    if (source := origin("networks", family.name)) != "heatlas":
        yield "added by", source
    for resolution in resolutions:
        config = Config(registration=RegistrationConfig(resolution_mm=resolution), model=network)
        shape = configured_input(config).shape
        grid = f"brain at {resolution:g} mm"
        try:
            yield grid, f"{parameter_count(network, shape):,} parameters; {'x'.join(map(str, shape))} voxels"
        except (BadInputError, UsageError) as error:
            yield grid, str(error)
    yield "smallest grid", f"{family.smallest_side(network)} voxels along each axis"
    yield "settings", ", ".join(f"{name} = {toml_value(value)}" for name, value in network.own.items())
    for method, settings in family.needs.items():
        yield f"with {method}", ", ".join(f"{name} = {toml_value(value)}" for name, value in settings.items())
    yield (
        "explained by",
        f"{len(METHODS) - len(family.refused)} of {len(METHODS)} methods" + ("; not by" if family.refused else ""),
    )
    for method, reason in family.refused.items():
        yield "", f"{method}: {reason}"
