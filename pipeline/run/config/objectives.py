"""Settings of training with explanations: section ``[objective]``.

They are declared here although what they set is a plug-in (`studies.objectives`), so that every run folder can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from heatlas.pipeline.run.config.ranges import above, at_least, between


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
    distance: Literal["cosine", "mae", "mse", "intersection"] = "cosine"
    """Between the input gradient and the guided one."""
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
        """How settings relate: whether that holds, and the message if it does not."""
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
            (
                self.mixup == 0 or self.mixup >= 0.01,
                "objective.mixup must be 0, or lie in 0.01..100",
            ),
            (not self.frozen or self.kind == "distilled", 'objective.frozen needs objective.kind = "distilled"'),
            (
                self.kind != "distilled" or bool(self.teacher),
                'objective.teacher must name the folder of a run where objective.kind = "distilled"',
            ),
        ]
