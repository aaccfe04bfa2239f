"""Registry of all attribution methods, by the name used in settings, on the command line and in sidecars.

Add a method here, or as a plug-in; a test finds methods that are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heatlas.pipeline.attribution.attention import Cgw1, RawAttention, Rollout, ViTCX
from heatlas.pipeline.attribution.cam.masked_volumes import AblationCam, OptiCam, ScoreCam
from heatlas.pipeline.attribution.cam.weighted_maps import (
    Cam,
    FakeCam,
    GradCam,
    GradCamPlusPlus,
    HiResCam,
    LayerCam,
    XGradCam,
)
from heatlas.pipeline.attribution.entry import Entry
from heatlas.pipeline.attribution.gradient.gradients import Gradient, InputTimesGradient
from heatlas.pipeline.attribution.gradient.guided_backprop import GuidedBackprop
from heatlas.pipeline.attribution.gradient.paths import (
    ExpectedGradients,
    IntegratedGradients,
    IntegratedGradientsFromMean,
)
from heatlas.pipeline.attribution.gradient.smoothing import (
    SmoothGrad,
    SmoothInputTimesGradient,
    SmoothIntegratedGradients,
)
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.perturbation.masking import Occlusion, RegionOcclusion
from heatlas.pipeline.attribution.perturbation.random_masks import Lime, Rise
from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.attribution.reference.region_swap import RegionShapley, RegionSwap
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import unknown
from heatlas.pipeline.run.plugins import plugged_in

ENTRIES: Sequence[Entry] = (
    Entry(
        Lrp, "share of the score attributed to each voxel, layer by layer",
        usual_start="run", spelling="LRP", steps=2.0,
    ),
    Entry(
        GuidedBackprop, "sensitivity of the score through units that increase it; without sign",
        usual_start="run", steps=1.5,
    ),
    Entry(Gradient, "sensitivity of the score to small changes, without sign"),
    Entry(
        InputTimesGradient, "value times gradient: share of the score for a linear network; signed",
        spelling="Input × gradient",
    ),
    Entry(IntegratedGradients, "share of the difference in score to air; signed"),
    Entry(SmoothGrad, "mean gradient, or another map, over noisy copies of the volume", spelling="SmoothGrad"),
    Entry(SmoothInputTimesGradient, "value times gradient, smoothed", spelling="Input × gradient, smoothed"),
    Entry(SmoothIntegratedGradients, "integrated gradients, smoothed"),
    Entry(Cam, "channels weighted by a linear head after global pooling (refuses other heads)", "last", spelling="CAM"),
    Entry(GradCam, "channels weighted by their mean gradient", "last", spelling="Grad-CAM"),
    Entry(GradCamPlusPlus, "channels weighted by their positive gradients", "last", spelling="Grad-CAM++"),
    Entry(XGradCam, "channels weighted by gradient times activation", "last", spelling="XGrad-CAM"),
    Entry(LayerCam, "positive gradient times activation, voxel by voxel", "last", spelling="LayerCAM"),
    Entry(HiResCam, "gradient times activation, voxel by voxel", "last", spelling="HiResCAM"),
    Entry(
        ScoreCam, "channels weighted by the score of the volume masked with them; no gradient",
        "last", slow="anywhere", spelling="Score-CAM",
    ),
    Entry(
        AblationCam, "channels weighted by the drop of the score without them; no gradient",
        "last", slow="input", spelling="Ablation-CAM",
    ),
    Entry(
        OptiCam, "channel weights that maximise the score of the volume masked with the map",
        "last", slow="anywhere", spelling="Opti-CAM",
    ),
    Entry(FakeCam, "constant map: a control for metrics, not an explanation", spelling="Fake-CAM"),
    Entry(RawAttention, "attention that each token receives in the last block; the same for every class", "tokens"),
    Entry(
        Rollout, "attention followed through all blocks; the same for every class",
        "tokens", spelling="Attention rollout",
    ),
    Entry(Cgw1, "relevance times gradient of attention, followed through all blocks", "tokens", spelling="CGW1"),
    Entry(
        ViTCX, "masks made of tokens, weighted by the score of what they show",
        "last", slow="anywhere", spelling="ViT-CX",
    ),
    Entry(Occlusion, "drop of the score when a box is hidden", slow="input"),
    Entry(RegionOcclusion, "drop of the score when an atlas region is hidden"),
    Entry(Rise, "mean score of random masks that show a voxel", slow="input", spelling="RISE"),
    Entry(Lime, "local linear model of the score in supervoxels of the brain", slow="anywhere", spelling="LIME"),
    Entry(
        ExpectedGradients, "share of the evidence of each voxel relative to controls; signed, in logits",
        usual_start="evidence", steps=15.0,
    ),
    Entry(
        IntegratedGradientsFromMean, "share of the difference in evidence to the mean control; signed, in logits",
        usual_start="evidence",
    ),
    Entry(
        DeepLift, "share of the difference in evidence to the mean control, in one backward pass; signed, in logits",
        usual_start="evidence", spelling="DeepLIFT", steps=3.0,
    ),
    Entry(
        RegionSwap, "evidence lost when an atlas region is replaced by the mean control; in logits",
        usual_start="evidence",
    ),
    Entry(
        RegionShapley, "Shapley value of each atlas region, of the evidence relative to the mean control; in logits",
        usual_start="evidence", spelling="Region Shapley",
    ),
)  # fmt: skip

OWN: Mapping[str, Entry] = {entry.name: entry for entry in ENTRIES}
METHODS: Mapping[str, Entry] = {**OWN, **{entry.name: entry for entry in plugged_in("methods", Entry, OWN)}}


def find_method(name: str, where: str = "--method") -> Entry:
    """The entry of a method; `where` is the option or setting that names it, for the message."""
    if name not in METHODS:
        raise UsageError(unknown(where, name, sorted(METHODS)))
    return METHODS[name]
