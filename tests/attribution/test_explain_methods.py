"""Methods by name: every one is listed, its settings are read as its record has them, in their ranges."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from range_ends import ends
from torch import nn

import heatlas.pipeline.attribution
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Box, template_grid
from heatlas.pipeline.attribution.cam.masked_volumes import OptiCam
from heatlas.pipeline.attribution.entry import RunContext, last_spatial_stage
from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.gradient.smoothing import SmoothGrad
from heatlas.pipeline.attribution.lrp.relevance import Lrp
from heatlas.pipeline.attribution.method_settings import CheckedSettings, build_record, read_settings, settable
from heatlas.pipeline.attribution.perturbation.masking import Masking, RegionLabels, RegionOcclusion
from heatlas.pipeline.attribution.perturbation.random_masks import Lime, Rise
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.explaining.explained_scan import asked_for
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.config.ranges import Bounds, split_kind
from heatlas.pipeline.run.errors import UsageError

USUAL = {"target": "AD", "stage": 0, "start": "logit"}


def methods_of_the_package() -> set[type]:
    found = set()
    of_core = pkgutil.walk_packages(heatlas.pipeline.attribution.__path__, "heatlas.pipeline.attribution.")
    for module in (*(one.name for one in of_core), "heatlas.studies.inherent"):
        for _, value in inspect.getmembers(importlib.import_module(module), inspect.isclass):
            own = value.__module__ == module and dataclasses.is_dataclass(value)
            if own and isinstance(getattr(value, "name", None), str) and callable(getattr(value, "maps", None)):
                found.add(value)
    return found


def test_every_method_of_the_package_is_listed_once() -> None:
    listed = [entry.record for entry in METHODS.values()]
    assert len(set(listed)) == len(listed)
    assert methods_of_the_package() == set(listed)


def test_every_method_is_described_and_has_a_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attribution_methods.md").read_text(encoding="utf-8")
    for entry in METHODS.values():
        assert entry.help
        assert f"`{entry.name}`" in page


def label_of(name: str, *asked: Any) -> str:
    return asked_for(find_method(name), *asked, USUAL).label


def test_no_two_methods_share_a_label() -> None:
    labels = [label_of(name, {}, "AD", 0, "logit") for name in METHODS]
    assert len(set(labels)) == len(labels)
    assert all(label.isascii() and label.isalnum() for label in labels)


def test_labels_tell_apart_whatever_is_asked_differently() -> None:
    labels = [
        label_of("rise", {}, "AD", 0, "logit"),
        label_of("rise", {}, "predicted", 0, "logit"),
        label_of("rise", {}, "A-D", 0, "logit"),
        label_of("rise", {}, "A_D", 0, "logit"),
        label_of("rise", {}, "AD", 2, "logit"),
        label_of("rise", {}, "AD", "stages.1.2", "logit"),
        label_of("rise", {}, "AD", "stages1.2", "logit"),
        label_of("rise", {}, "AD", 0, "probability"),
        label_of("rise", {"p": 0.5}, "AD", 0, "logit"),
        label_of("rise", {"p": 0.25, "masks": 100}, "AD", 0, "logit"),
        label_of("occlusion", {"size": (8, 8, 4)}, "AD", 0, "logit"),
        label_of("occlusion", {"size": (8, 84)}, "AD", 0, "logit"),
        label_of("rise", {"masking.baseline": -1.0}, "AD", 0, "logit"),
        label_of("rise", {"masking.baseline": 1.0}, "AD", 0, "logit"),
    ]
    assert len(set(labels)) == len(labels)
    assert all(label.isascii() and label.isalnum() and len(label) < 100 for label in labels)
    assert labels[9] == "riseMasks100P0p25"


@dataclass(frozen=True)
class Made:
    name: ClassVar[str] = "made"
    size: int | tuple[int, int, int] = 16
    share: float = 0.5
    kind: Literal["a", "b"] = "a"
    exact: bool = True
    masking: Masking = field(default_factory=Masking)
    volume: torch.Tensor | None = None


def test_settings_are_read_as_their_fields_are() -> None:
    read = read_settings("made", Made, ["size=[8, 8, 4]", "share=1", "kind=b", "exact=false", "masking.inner=zero"])
    assert read == {"size": (8, 8, 4), "share": 1.0, "kind": "b", "exact": False, "masking.inner": "zero"}
    assert isinstance(read["share"], float)
    made = build_record(Made, read, {})
    assert made == Made((8, 8, 4), 1.0, "b", False, Masking(inner="zero"))


def test_a_default_said_out_loud_is_no_difference() -> None:
    assert read_settings("made", Made, ["size=16", "kind=a", "masking.baseline=0"]) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("sizes=3", "no setting 'sizes'; it has size, share"),
        ("volume=3", "no setting 'volume'"),
        ("size=3.5", "a whole number or a list of 3 whole numbers"),
        ("size=[1, 2]", "a list of 3 whole numbers"),
        ("size=true", "a whole number"),
        ("size=" + "9" * 6000, "a whole number"),
        ("size=" + "[" * 100_000, "a whole number"),
        ("share=many", "a number"),
        ("kind=c", "one of 'a', 'b'"),
        ("exact=1", "true or false"),
        ("masking.inner=blur", "one of 'baseline', 'zero'"),
    ],
)
def test_wrong_settings_are_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="--setting") as caught:
        read_settings("made", Made, [text])
    assert words in str(caught.value)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        read_settings("made", Made, ["size=3", "size=4"])


def test_unknown_method_lists_the_known() -> None:
    with pytest.raises(UsageError, match="grad-cam, grad-cam"):
        find_method("gradcam")


def test_last_spatial_stage_is_the_one_before_flattening() -> None:
    model = FoundingCNN((29, 31, 33), channels=(3, 4), pools=(2, 3), hidden_units=5)
    assert last_spatial_stage(model) == 2
    assert last_spatial_stage(nn.Sequential(nn.Flatten(), nn.Linear(8, 2))) == 0


def test_regions_are_given_by_the_run_on_the_grid_of_the_network() -> None:
    atlas = load_atlas("neuromorphometrics-cat12", template_grid(4.0))
    box = Box((5, 7, 3), (29, 31, 33))
    method = find_method("region-occlusion").build({"batch": 2}, RunContext(PackedAtlas.of(atlas), box))
    assert isinstance(method, RegionOcclusion)
    assert method.batch == 2
    assert torch.equal(method.regions.labels, torch.from_numpy(box.crop(atlas.labels).astype("int64")))


LABELS = RegionLabels("toy", torch.ones(2, 2, 2, dtype=torch.int64))
UNBOUNDED = {"masking.baseline", "air"}
"""Intensities: any finite number."""
ENDS = [
    (name, setting, value, allowed)
    for name, entry in METHODS.items()
    for setting, one in settable(entry.record)
    for value, allowed in ends(one.kind, one.default)
]


def build(name: str, setting: str, value: Any) -> object:
    """The method with a setting; the stride of boxes is no larger than they are."""
    given = {"regions": LABELS} if METHODS[name].record is RegionOcclusion else {}
    more = {"stride": 1} if setting == "size" else {}
    return build_record(METHODS[name].record, {setting: value, **more}, given)


@pytest.mark.parametrize(("name", "setting", "value", "allowed"), ENDS)
def test_the_ends_of_ranges(name: str, setting: str, value: Any, allowed: bool) -> None:
    """Created in Python and read from text alike."""
    text = f"{setting}={toml_value(value)}"
    if allowed:
        build(name, setting, value)
        read_settings(name, METHODS[name].record, [text])
        return
    with pytest.raises(UsageError, match=rf"^{name.replace('+', '.')}: {setting} = .*: must "):
        build(name, setting, value)
    with pytest.raises(UsageError, match=rf"^--setting {setting} = .*: must "):
        read_settings(name, METHODS[name].record, [text])


@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_a_method_has_a_range(name: str) -> None:
    record = METHODS[name].record
    for setting, one in settable(record):
        if isinstance(one.default, int | float) and not isinstance(one.default, bool):
            has_range = any(isinstance(limit, Bounds) for limit in split_kind(one.kind)[1])
            assert has_range != (setting in UNBOUNDED), setting
            assert issubclass(record, CheckedSettings)
    assert len(ENDS) > 60


@pytest.mark.parametrize(
    ("record", "setting", "value"),
    [
        (Masking, "baseline", math.inf), (Masking, "baseline", math.nan), (Lrp, "beta", math.nan), (Lrp, "beta", ()),
        (Lrp, "beta", (0.5, math.inf)), (Lrp, "beta", (1.0, 1.0)), (Lrp, "epsilon", math.inf), (Lrp, "gamma", -0.1),
        (IntegratedGradients, "steps", 2.0), (IntegratedGradients, "steps", True), (IntegratedGradients, "batch", True),
        (IntegratedGradients, "tolerance", math.nan), (SmoothGrad, "samples", 1.5), (SmoothGrad, "noise", math.nan),
        (SmoothGrad, "of", "grad-cam"), (Lime, "segments", 2.5), (Lime, "compactness", math.nan),
        (Lime, "spread", "even"), (Rise, "masks", 2.5), (Rise, "score", "logit"), (OptiCam, "normalisation", "softmax"),
        (OptiCam, "objective", "logit"), (OptiCam, "keep", "first"), (OptiCam, "learning_rate", math.nan),
        (Masking, "inner", "mean"),
    ],
)  # fmt: skip
def test_what_is_no_value_of_a_setting_is_refused(record: type[Any], setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{getattr(record, 'name', record.__name__.lower())}.*{setting} = "):
        record(**{setting: value})


def test_any_error_is_accepted_in_python_and_none_that_a_sidecar_cannot_hold_from_text() -> None:
    assert IntegratedGradients(tolerance=math.inf).tolerance == math.inf
    with pytest.raises(UsageError, match=r"tolerance = inf: must be a finite number"):
        read_settings("integrated-gradients", IntegratedGradients, ["tolerance=inf"])
