"""Settings of networks (``[model]``), and of what they learn beside labels (``[objective]``, ``[pretraining]``).

The record of a family stands beside the family (`pipeline.models.families`), which adds it to `NETWORKS`. The other two
sections are declared here although what they set are plug-ins (`studies`), so that every run folder can be read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from heatlas.pipeline.run.config.ranges import Fraction, above, at_least, between, naming

Width = Annotated[float, between(1 / 64, 4)]


@dataclass(frozen=True)
class ModelConfig:
    """The network and what it sees; each family adds its own settings."""

    relatives = ""
    """What families are called together whose settings have a common base, on that base."""
    dynamic_linear = False
    """Whether the network is one linear map for each scan."""

    architecture: str
    """Name of the family."""
    field_of_view: Literal["brain", "template"] = "brain"
    """What the network sees: the box around the template's brain, or the whole template."""
    intensities: Literal["minmax", "percentiles"] = "minmax"
    """How intensities in the brain are scaled to [0, 1]: by their minimum and maximum, or by their percentiles 0.5 and
    99.5, beyond which they are cut off, so that an eye or a vessel in a rough mask does not darken all the rest."""

    @property
    def shared(self) -> dict[str, Any]:
        """What the network sees, whatever its family."""
        return {name: getattr(self, name) for name in SHARED}

    @property
    def own(self) -> dict[str, Any]:
        """The settings that the family adds."""
        others = {"architecture", *SHARED}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in others}

    @property
    def maps_voxels(self) -> bool:
        """Whether what the network contributes can be shown voxel by voxel."""
        return True

    @property
    def needs_classes(self) -> str:
        """The setting that is not defined where a number is predicted; empty without one."""
        return ""

    @property
    def usual(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of other sections that suit the family better than their defaults, by section."""
        return {}


SHARED = tuple(field.name for field in dataclasses.fields(ModelConfig) if field.name != "architecture")
"""Settings of every family: what the network sees."""

NETWORKS: dict[str, type[ModelConfig]] = {}
"""The record of settings of every family, by the name in ``[model] architecture``."""
DEFAULT_NETWORK = "founding"


def default_network() -> ModelConfig:
    """Settings of the network that a run has if it names no other."""
    return NETWORKS[DEFAULT_NETWORK](architecture=DEFAULT_NETWORK)


@dataclass(frozen=True)
class ObjectiveConfig:
    """What networks learn besides the task: where their maps should be, or what a teacher shows them."""

    kind: Literal["task", "guided", "distilled", "readable-gradients"] = "task"
    """``task``: nothing else. ``guided``: maps inside a mask. ``distilled``: the answers and maps of a teacher instead
    of the labels. ``readable-gradients``: input gradients like those of guided backpropagation."""
    weight: Annotated[Literal["usual"] | float, between(0, 1_000_000)] = "usual"
    """Weight of the loss of the maps, relative to that of the task; 0 is the control that trains as long without it.
    Usual is what was studied with the brain as mask, by `loss`: 30 (energy), 100 (l1), 1 (ppce), 10,000 (rrr); 1 for
    other kinds."""
    map: Literal[
        "usual", "input-x-gradient", "grad-cam", "inherent", "dynamic-weights", "attention-transfer", "evidence"
    ] = "usual"
    """Map that is guided or compared. ``inherent``: contributions W(x) x of a B-cos or CoDA network.
    ``dynamic-weights``, of distillation at the input: their weights W(x) of both channels. ``attention-transfer``, of
    distillation after a stage: squared features summed over channels, beside the labels in place of the teacher's
    answers. ``evidence``, of guidance at the input: expected gradients from the mean control of the training part, one
    point in each step. Usual: input-x-gradient; of distillation, as its source, dynamic-weights for B-cos (and CoDA)
    students, else grad-cam."""
    stage: Annotated[Literal["usual"] | int, at_least(-1)] = "usual"
    """Where it is made: 0 at the input, n after stage n of the network, -1 after the last stage with voxels. Usual: -1
    for grad-cam and attention-transfer, 0 for other maps."""
    loss: Literal["energy", "l1", "ppce", "rrr"] = "energy"
    """Loss of guidance: share of positive attribution inside the mask (energy), distance from the mask (l1), more
    inside (ppce), less outside (rrr)."""
    regions: tuple[str, ...] = ("brain",)
    """What makes the mask: ``brain``, all of the template's brain, or bilateral groups of the atlas; with
    `region_labels` ``own``, regions of people's own label images, such as ``Hippocampus`` or ``Left-Hippocampus``."""
    region_labels: Literal["atlas", "own"] = "atlas"
    """Whose anatomy the regions are: that of the template, alike for everybody, or each person's ``own``, from
    ``aparc+aseg.mgz`` or ``_dseg.nii.gz`` of the scan (docs/inputs.md). Whoever has none is not guided."""
    mask: str = ""
    """NIfTI file in template space in place of `regions`; voxels above 0 are inside."""
    outside: bool = False
    """Guide maps to what lies outside the mask instead."""
    boxes: bool = False
    """Use the bounding box of each region and side, or of each connected part of `mask`."""
    dilate_voxels: Annotated[int, between(0, 50)] = 0
    """Voxels by which the mask grows on every side."""
    annotated: Annotated[float, above(0, up_to=1)] = 1.0
    """Share of the training participants whose maps are guided; with `region_labels` ``own``, of those with labels."""
    classes: tuple[str, ...] = ()
    """Classes whose maps are guided; none for all."""
    teacher: str = ""
    """Folder of a finished run of the same people and folds, whose networks teach; or the folder of other networks of
    these folds, such as ``RUN/evaluation/models/marker_diagnosis_guided``."""
    scans: str = ""
    """Folder of a run of an unrelated cohort, whose registered scans a student learns from instead of those of the
    training part; their labels are not read. Empty for the training part."""
    frozen: bool = False
    """Ask the teacher once for each scan as it is; its maps are flipped and shifted with the scans. Faster, and the
    teacher need not fit in memory beside the student."""
    temperature: Annotated[float, between(0.01, 1000)] = 1.0
    """Softens the answers of teacher and student."""
    mixup: Annotated[float, between(0, 100)] = 0.0
    """Teacher and student see each scan mixed with another of its batch, by a share drawn from Beta(mixup, mixup); 0
    for scans as they are."""
    distance: Literal["cosine", "mae", "mse", "intersection", "intersection_of_shares"] = "cosine"
    """Between the input gradient and the guided one. ``intersection`` is that of its source (Torres Figueroa 2024, eq.
    4.8), over the product of the sums of both; ``intersection_of_shares`` divides each gradient by its own sum."""
    guided_alone: bool = False
    """Of readable gradients: learn the task by guided gradients alone, each ReLU handing back only what is above 0, in
    place of the distance between both. Its source found that unstable."""

    @property
    def uses_maps(self) -> bool:
        """Whether the loss depends on maps or input gradients."""
        return self.kind != "task" and self.weight != 0

    @property
    def at_input(self) -> bool:
        """Whether maps are made at the input, as far as the settings name the stage."""
        return self.stage in ("usual", 0)

    @property
    def own_anatomy(self) -> bool:
        """Whether the mask of each scan is that of the person's own labels."""
        return self.kind == "guided" and self.region_labels == "own"

    @property
    def moves_maps(self) -> bool:
        """Whether masks or maps of a teacher are moved with the volumes."""
        return self.kind == "guided" or self.frozen

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (
                self.kind != "guided" or bool(self.regions) or bool(self.mask),
                "objective.regions must name at least one group where objective.mask names no file",
            ),
            (
                not self.own_anatomy or not (self.mask or "brain" in self.regions),
                'objective.regions must name regions of the labels where objective.region_labels = "own": neither '
                '"brain" nor objective.mask is of one person',
            ),
            (not self.scans or self.kind == "distilled", 'objective.scans needs objective.kind = "distilled"'),
            (
                self.map != "evidence" or (self.kind == "guided" and self.at_input) or not self.uses_maps,
                'objective.map = "evidence" is for objective.kind = "guided" at objective.stage = 0',
            ),
            (
                self.map != "dynamic-weights" or (self.kind == "distilled" and self.at_input) or not self.uses_maps,
                'objective.map = "dynamic-weights" is for objective.kind = "distilled" at objective.stage = 0',
            ),
            (
                not self.guided_alone or self.kind == "readable-gradients",
                'objective.guided_alone needs objective.kind = "readable-gradients"',
            ),
            (
                self.map != "attention-transfer"
                or (self.kind == "distilled" and self.stage != 0)
                or not self.uses_maps,
                'objective.map = "attention-transfer" is for objective.kind = "distilled" after a stage: leave '
                "objective.stage out (-1)",
            ),
            (
                self.map != "attention-transfer" or not (self.scans or self.mixup),
                'objective.map = "attention-transfer" learns the labels of single scans: leave objective.scans and '
                "objective.mixup out",
            ),
            (
                not self.mixup or (self.kind == "distilled" and not self.frozen),
                'objective.mixup needs objective.kind = "distilled" and a teacher that sees each mixed scan '
                "(objective.frozen = false)",
            ),
            (self.mixup == 0 or self.mixup >= 0.01, "objective.mixup must be 0, or lie in 0.01..100"),
            (not self.frozen or self.kind == "distilled", 'objective.frozen needs objective.kind = "distilled"'),
            (
                self.kind != "distilled" or bool(self.teacher),
                'objective.teacher must name the folder of a run where objective.kind = "distilled"',
            ),
        ]


Schedule = Literal["fixed", "cosine", "linear", "step", "random", "by-class"]


@dataclass(frozen=True)
class PretrainingConfig:
    """How a network learns from scans without labels."""

    method: Literal["simclr", "moco", "byol", "dino", "masked"] = "simclr"
    """What is compared: two views of a scan with those of the other scans of the batch (simclr), also with earlier ones
    (moco), or with a slowly moving copy of the network alone (byol, dino); or hidden patches of a scan with what the
    network restores (masked; vit only)."""
    temperature: Annotated[float, above(0)] = 0.1
    """Temperature of the similarities of simclr and moco; the lowest one of a schedule."""
    highest_temperature: Annotated[float, above(0, up_to=100)] = 1.0
    """Highest temperature of a schedule."""
    schedule: Schedule = "cosine"
    """How the temperature changes from epoch to epoch: between its bounds as a cosine, in straight lines or in steps,
    drawn at random, or not at all. ``by-class``: the lowest for scans of people of `tail_classes`, the highest for all
    others; a control that reads labels."""
    tail_classes: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Classes, such as ``AD``, whose people have the lowest temperature with ``by-class``; a person's class is that of
    the first scan with a label or a diagnosis."""
    period_epochs: Annotated[float, at_least(0)] = 0.0
    """Period of a schedule in epochs; 0 for the one with which the last epoch is at 0.7 of the fifth period, on the way
    up again."""
    dimensions: Annotated[int, between(2, 8192)] = 64
    """Dimensions of the embeddings that are compared; for dino, the number of its prototypes."""
    queue: Annotated[int, at_least(0)] = 0
    """Earlier embeddings that moco compares with, fewer than there are scans; 0 for half as many as scans."""
    momentum: Fraction = 0.99
    """Share of the moving copy that stays at each step; of a schedule, in the first epoch."""
    momentum_schedule: Literal["fixed", "cosine"] = "fixed"
    """Whether `momentum` stays, as is usual for moco, or rises as a cosine towards 1 over the epochs, as published for
    byol and dino."""
    masking_ratio: Annotated[float, above(0, below=1)] = 0.75
    """Share of the patches of a scan that masked hides."""
    long_tail: Annotated[tuple[str, ...], naming(0, once=True)] = ()
    """Classes from the most frequent to the rarest: only people of these are learned from, drawn so that their number
    falls exponentially from class to class. Empty for everybody, whatever the class."""
    long_tail_ratio: Annotated[float, between(1, 100_000)] = 1.0
    """People of the first class of `long_tail` over those of the last; 1 for as many of each."""
    without: str = ""
    """Folder of a run whose participants are left out, so that its networks can stand on this one."""

    def checks(self) -> list[tuple[bool, str]]:
        return [
            (
                self.temperature <= self.highest_temperature,
                "pretraining.highest_temperature must lie between pretraining.temperature and 100",
            ),
            (
                (self.schedule == "by-class") == bool(self.tail_classes),
                'pretraining.tail_classes and pretraining.schedule = "by-class" go together: set both or neither',
            ),
            (
                self.schedule != "by-class" or self.method in ("simclr", "moco"),
                'pretraining.schedule = "by-class" needs pretraining.method = "simclr" or "moco": others have no '
                "temperature",
            ),
            (
                len(self.long_tail) != 1 and (len(self.long_tail) > 1 or self.long_tail_ratio == 1),
                "pretraining.long_tail must name two classes or more where pretraining.long_tail_ratio is to count",
            ),
        ]
