"""Methods by name: every one is listed, and its settings are read as its record has them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import nn

import heatlas.pipeline.attribution
from heatlas.atlases.brain_box import Box
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.entry import RunContext, last_spatial_stage
from heatlas.pipeline.attribution.method_settings import build_record, read_settings
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.attribution.perturbation.occlusion import RegionOcclusion
from heatlas.pipeline.attribution.registry import ENTRIES, METHODS, find_method
from heatlas.pipeline.explaining.explanation import asked_for
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.errors import UsageError

USUAL = {"target": "AD", "stage": 0, "start": "logit"}


def methods_of_the_package() -> set[type]:
    found = set()
    for module in pkgutil.walk_packages(heatlas.pipeline.attribution.__path__, "heatlas.pipeline.attribution."):
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            own = value.__module__ == module.name and dataclasses.is_dataclass(value)
            if own and isinstance(getattr(value, "name", None), str) and callable(getattr(value, "maps", None)):
                found.add(value)
    return found


def test_every_method_of_the_package_is_listed_once() -> None:
    listed = [entry.record for entry in ENTRIES]
    assert len(set(listed)) == len(listed) == len(METHODS)
    assert methods_of_the_package() == set(listed)


def test_every_method_is_described_and_has_a_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "attribution_methods.md").read_text(encoding="utf-8")
    for entry in ENTRIES:
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
