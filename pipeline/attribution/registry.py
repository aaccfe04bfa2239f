"""Every method of this package by the name it has on the command line and in sidecars.

Adding a method is adding a line here; a test finds methods that are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from atlases.brain_box import Box
from pipeline.attribution.cam.fake_cam import FakeCam
from pipeline.attribution.cam.opti_cam import OptiCam
from pipeline.attribution.cam.score_cam import AblationCam, ScoreCam
from pipeline.attribution.cam.weighted_maps import Cam, GradCam, GradCamPlusPlus, HiResCam, LayerCam, XGradCam
from pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from pipeline.attribution.gradient.integrated_gradients import IntegratedGradients
from pipeline.attribution.gradient.smoothing import SmoothGrad, SmoothInputTimesGradient, SmoothIntegratedGradients
from pipeline.attribution.lrp.methods import GuidedBackprop, Lrp
from pipeline.attribution.method_settings import Setting, build_record
from pipeline.attribution.methods import Method
from pipeline.attribution.perturbation.lime import Lime
from pipeline.attribution.perturbation.occlusion import Occlusion, RegionLabels, RegionOcclusion
from pipeline.attribution.perturbation.rise import Rise
from pipeline.models.contract import StagedModel
from pipeline.regions.territory import Territory
from pipeline.run.errors import UsageError


@dataclass(frozen=True)
class Surroundings:
    """What a method may be given by the run: regions, and the part of the template grid that the network sees."""

    territory: Territory
    box: Box | None


@dataclass(frozen=True)
class Entry:
    """A method as users meet it.

    Parameters
    ----------
    record : type
        Its settings.
    help : str
        What it answers, in one line.
    usual_stage : {"input", "last"}
        Where it is asked unless said otherwise: at the input, or after the last layers that keep places apart.
    usual_start : {"run", "logit"}
        From which value it starts unless said otherwise: as the maps of the run, or the logit.
    given : callable
        ``given(surroundings)``: settings that are not typed but come from the run.
    """

    record: type[Any]
    help: str
    usual_stage: Literal["input", "last"] = "input"
    usual_start: Literal["run", "logit"] = "logit"
    given: Callable[[Surroundings], Mapping[str, Any]] = lambda _: {}

    @property
    def name(self) -> str:
        return str(self.record.name)

    def build(self, settings: Mapping[str, Setting], surroundings: Surroundings) -> Method:
        """Make the method; raises `UsageError` for a setting that it refuses."""
        method: Method = build_record(self.record, settings, self.given(surroundings))
        return method

    def stage_of(self, model: nn.Module) -> int:
        """Number of the boundary at which the method is usually asked."""
        return last_spatial_stage(model) if self.usual_stage == "last" else 0


def _regions(surroundings: Surroundings) -> Mapping[str, Any]:
    labels = torch.from_numpy(surroundings.territory.labels_in(surroundings.box))
    return {"regions": RegionLabels("regions of the run", labels)}


ENTRIES: Sequence[Entry] = (
    Entry(Lrp, "share of the score that each voxel carries, layer by layer", usual_start="run"),
    Entry(GuidedBackprop, "where the score reacts through units that raise it", usual_start="run"),
    Entry(Gradient, "how strongly the score reacts to a small change, without sign"),
    Entry(InputTimesGradient, "value times gradient: share of the score, were the network linear; signed"),
    Entry(IntegratedGradients, "share of the difference between the score and that of air; signed"),
    Entry(SmoothGrad, "mean gradient over noisy copies of the volume"),
    Entry(SmoothInputTimesGradient, "value times gradient, smoothed"),
    Entry(SmoothIntegratedGradients, "integrated gradients, smoothed"),
    Entry(Cam, "channels weighted by a linear head after global pooling (refuses other heads)", "last"),
    Entry(GradCam, "channels weighted by their mean gradient", "last"),
    Entry(GradCamPlusPlus, "channels weighted by their positive gradients", "last"),
    Entry(XGradCam, "channels weighted by gradient times activation", "last"),
    Entry(LayerCam, "positive gradient times activation, place by place", "last"),
    Entry(HiResCam, "gradient times activation, place by place", "last"),
    Entry(ScoreCam, "channels weighted by the score of the volume seen through them; no gradient", "last"),
    Entry(AblationCam, "channels weighted by the drop of the score without them; no gradient", "last"),
    Entry(OptiCam, "channel weights optimised so that the volume seen through the map scores highest", "last"),
    Entry(FakeCam, "looks at nothing: a control for metrics, not an explanation"),
    Entry(Occlusion, "drop of the score when a box is hidden"),
    Entry(RegionOcclusion, "drop of the score when an atlas region is hidden", given=_regions),
    Entry(Rise, "mean score over random masks that show a voxel"),
    Entry(Lime, "local linear model of the score in supervoxels of the brain"),
)

METHODS: Mapping[str, Entry] = {entry.name: entry for entry in ENTRIES}


def find_method(name: str) -> Entry:
    """The entry of a method.

    Raises
    ------
    UsageError
        For an unknown name; lists those there are.
    """
    if name not in METHODS:
        raise UsageError(f"--method {name}: unknown; known are {', '.join(sorted(METHODS))}.")
    return METHODS[name]


def last_spatial_stage(model: nn.Module) -> int:
    """Boundary after the last stage that holds a 3D convolution; 0 where there is none."""
    stages = list(model.stages) if isinstance(model, StagedModel) else list(model.children())
    with_convolution = [
        number for number, stage in enumerate(stages, 1) if any(isinstance(m, nn.Conv3d) for m in stage.modules())
    ]
    return with_convolution[-1] if with_convolution else 0
