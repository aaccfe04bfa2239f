"""Every range of every setting of every method: refused just outside, by method and setting, accepted at its ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from range_ends import ends

from heatlas.pipeline.attribution.gradient.integrated_gradients import IntegratedGradients
from heatlas.pipeline.attribution.lrp.methods import Lrp
from heatlas.pipeline.attribution.method_settings import CheckedSettings, build_record, read_settings, settable
from heatlas.pipeline.attribution.perturbation.masking import Masking
from heatlas.pipeline.attribution.perturbation.occlusion import RegionLabels, RegionOcclusion
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.run.config.files import toml_value
from heatlas.pipeline.run.config.ranges import Bounds, split_kind
from heatlas.pipeline.run.errors import UsageError

LABELS = RegionLabels("toy", torch.ones(2, 2, 2, dtype=torch.int64))
UNBOUNDED = {"masking.baseline", "air"}
"""Intensities: any finite number."""
ENDS = [
    (name, setting, value, allowed)
    for name, entry in METHODS.items()
    for setting, field in settable(entry.record)
    for value, allowed in ends(field.kind, field.default)
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
    for setting, field in settable(record):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            has_range = any(isinstance(limit, Bounds) for limit in split_kind(field.kind)[1])
            assert has_range != (setting in UNBOUNDED), setting
            assert issubclass(record, CheckedSettings)
    assert len(ENDS) > 60


@pytest.mark.parametrize(
    ("record", "setting", "value"),
    [
        (Masking, "baseline", math.inf), (Masking, "baseline", math.nan), (Lrp, "beta", math.nan), (Lrp, "beta", ()),
        (Lrp, "beta", (0.5, math.inf)), (Lrp, "beta", (1.0, 1.0)), (Lrp, "epsilon", math.inf), (Lrp, "gamma", -0.1),
        (IntegratedGradients, "steps", 2.0), (IntegratedGradients, "batch", True),
    ],
)  # fmt: skip
def test_numbers_that_are_no_numbers_are_refused(record: type[Any], setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{setting} = "):
        record(**{setting: value})


def test_any_error_is_accepted_in_python_and_none_that_a_sidecar_cannot_hold_from_text() -> None:
    assert IntegratedGradients(tolerance=math.inf).tolerance == math.inf
    with pytest.raises(UsageError, match=r"tolerance = inf: must be a finite number"):
        read_settings("integrated-gradients", IntegratedGradients, ["tolerance=inf"])
