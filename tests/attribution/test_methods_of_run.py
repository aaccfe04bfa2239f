"""Methods by name: settings, runs, and the families that they explain."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import nibabel as nib
import numpy as np
import pytest
import torch
from outside_contrast import ATLAS, CONFIG, LABELLED, SPLIT, OutsideRun, make_run
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
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.perturbation.masking import Masking, RegionLabels, RegionOcclusion
from heatlas.pipeline.attribution.perturbation.random_masks import Lime, Rise
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.explained_scan import asked_for, explain_scan
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run, require_explained
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.families.foreign import ForeignConfig
from heatlas.pipeline.models.families.founding import FoundingCNN
from heatlas.pipeline.models.families.registry import BUILT, FAMILIES
from heatlas.pipeline.models.inputs import from_network, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.run.config.files import load_config, toml_value
from heatlas.pipeline.run.config.ranges import Bounds, split_kind
from heatlas.pipeline.run.config.settings import AttributionConfig, Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import DigestCache, code_digest
from heatlas.pipeline.statistics.comparison.rankings import rankings_of_run
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.studies.probes.records import ProbeConfig
from heatlas.workflows.preflight import require_settings
from tests.attribution.every_method import QUICK, SMALL, trained

# Any method of the registry can explain a run: the same files for all, and keys that hold each method's own code.

NAME = "integratedGradientsSteps8"


def with_methods(*methods: str, settings: tuple[str, ...] = ()) -> Config:
    asked = AttributionConfig(methods=methods, settings=settings, betas=(0.0, 0.5))
    return replace(CONFIG, attribution=asked)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OutsideRun:
    """Explained by LRP and integrated gradients, up to the tables of all scans."""
    made = make_run(tmp_path_factory.mktemp("methods") / "run")
    made.aggregate_labelled()  # predictions
    config = with_methods("lrp", "integrated-gradients", settings=("integrated-gradients:steps=8",))
    predictions, layout = read_table(made.layout.group / "predictions.tsv"), made.layout
    with ThreadPoolExecutor(1) as executor:
        known = DigestCache(layout.digests)
        work = Work(layout, layout.root, config, LABELLED, SPLIT, executor, known)
        outcomes = explain_scans(work, LABELLED, predictions, ATLAS)
        assert all(outcome.ok for outcome in outcomes)
        names = map_names(config.attribution)
        aggregate_relevance(work, LABELLED, predictions, names, ATLAS.grid)
    return made


def test_every_method_of_a_run_has_maps_sums_and_means(run: OutsideRun) -> None:
    layout, names = run.layout, ["lrpB000", "lrpB050", NAME]
    relevance = read_table(layout.group / "relevance.tsv")
    assert list(dict.fromkeys(relevance["map"])) == names
    assert set(read_table(layout.group / "relevance_bilateral.tsv")["map"]) == set(names)
    assert set(read_table(layout.group / "relevance_audit.tsv")["map"]) == set(names)
    assert set(read_table(layout.statistics("fingerprints"))["map"]) == set(names)
    assert set(read_table(layout.group / "conservation.tsv")["map"]) == set(names[:2])
    maps = [np.asanyarray(nib.load(layout.scan(s.participant_id, s.session_id, 4.0).relevance_map(NAME)).dataobj)
            for s in LABELLED if s.label == "AD"]  # fmt: skip
    mean = np.asanyarray(nib.load(layout.group_map("AD", NAME)).dataobj)
    np.testing.assert_allclose(mean, np.mean(maps, axis=0, dtype=np.float64), atol=1e-6 * np.abs(mean).max())
    assert not layout.scan("sub-1", None, 4.0).relevance_map("gb").exists()


def test_the_maps_are_those_of_the_method(run: OutsideRun) -> None:
    files, loaded = run.layout.scan("sub-1", None, 4.0), load_model(run.layout.fold(0))
    volume = torch.from_numpy(read_network_volume(files, loaded.input))[None, None]
    expected = attribute(loaded.model, volume, 1, IntegratedGradients(steps=8)).values[0, 0].numpy()
    written = np.asanyarray(nib.load(files.relevance_map(NAME)).dataobj)
    np.testing.assert_array_equal(written, from_network(expected, loaded.input))
    sums = read_table(files.region_table).query("map == @NAME")["sum"]
    assert sums.sum() == pytest.approx(float(expected.sum(dtype=np.float64)), rel=1e-6)


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        (("lrp", "grad_cam"), (), "attribution.methods: grad_cam: unknown"),
        (("occlusion",), ("occlusion:sizes=3",), "no setting 'sizes'"),
        (("occlusion",), ("occlusion:size=x",), "a whole number"),
        (("occlusion",), ("occlusion:batch=0",), "batch = 0: must be 1 or more"),
        (("region-occlusion",), ("region-occlusion:batch=0",), "batch = 0: must be 1 or more"),  # made with an atlas
        (("lrp",), ("rise:masks=3",), "rise is not among the methods"),
        (("lrp",), ("lrp:beta=[0, 1]",), "attribution.betas"),
        (("lrp", "rise"), ("batch=2",), "lrp has no setting 'batch'"),
    ],
)
def test_what_does_not_exist_is_named_before_any_work(methods: tuple[str, ...], settings, words: str) -> None:
    with pytest.raises(UsageError, match="configuration: attribution") as caught:
        explanations_of_run(with_methods(*methods, settings=settings))
    assert words in str(caught.value)


def test_a_method_that_the_network_cannot_be_asked_is_refused_before_any_scan(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run")
    with ThreadPoolExecutor(1) as executor:
        digests = DigestCache(made.layout.digests)
        work = Work(made.layout, made.layout.root, with_methods("lrp", "cam"), LABELLED, SPLIT, executor, digests)
        with pytest.raises(UsageError, match="CAM needs global average pooling"):
            explain_scans(work, LABELLED, read_predictions(), ATLAS)
    assert not list(made.layout.root.rglob("*_relevance.*"))


def test_a_method_that_the_users_own_network_refuses_is_named_before_registration(tmp_path: Path) -> None:
    """`heatlas check` and `heatlas run` try the methods; the others explain it."""
    (tmp_path / "own.py").write_text(
        OWN + "\ndef ordered():\n    class Sort(nn.Module):\n        def forward(self, x):\n"
        "            return x.sort(2).values\n    return nn.Sequential(Sort(), linear())\n"
    )

    def tried(methods: Sequence[str]) -> None:
        model = ForeignConfig(network=f"{tmp_path / 'own.py'}:ordered")
        attribution = AttributionConfig(methods=tuple(methods))
        require_explained(replace(load_config(preset="patients"), model=model, attribution=attribution))

    tried(("gradient", "region-swap", "occlusion"))
    with pytest.raises(UsageError, match=r"attribution.methods: deeplift does not explain this network: .*sort"):
        tried(("gradient", "deeplift"))


OWN = """from torch import nn

def averaged():
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten())

def linear():
    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
"""


def test_evidence_of_a_network_that_no_linear_layer_ends_is_refused_before_training(tmp_path: Path) -> None:
    """In the checks that `heatlas check` and `heatlas run` share; a probe's head of several layers averages at last."""
    (tmp_path / "own.py").write_text(OWN)
    body = json.dumps({"architecture": "resnet10"})
    own = {name: ForeignConfig(network=f"{tmp_path / 'own.py'}:{name}") for name in ("averaged", "linear")}
    refused = (ProbeConfig(backbone="-", body=body, head="mlp-2"), own["averaged"])
    accepted = (ProbeConfig(backbone="-", body=body), own["linear"])
    for model in (*refused, *accepted):
        for start in ("evidence", "logit"):
            asked = AttributionConfig(methods=("lrp",), start_value=start)  # type: ignore[arg-type]
            config = replace(CONFIG, model=model, attribution=asked)
            if model in refused and start == "evidence":
                with pytest.raises(UsageError, match=r'attribution\.start_value = "evidence": lrp from the evidence'):
                    require_settings(config, ("attribution",), elsewhere=False)
            else:
                require_settings(config, ("attribution",), elsewhere=False)


def read_predictions():  # type: ignore[no-untyped-def]
    import pandas as pd

    return pd.DataFrame({"scan_id": [scan.scan_id for scan in LABELLED], "outcome": "TP"})


def test_lrp_with_settings_of_its_own_makes_one_map() -> None:
    (asked,) = explanations_of_run(with_methods("lrp", settings=("lrp:rules=composite", "lrp:gamma=0.5")))
    assert asked.names == ("lrpGamma0p5RulesComposite",)
    assert asked.settings == {"rules": "composite", "gamma": 0.5, "batch_norm": "fold"}
    (usual,) = explanations_of_run(with_methods("lrp"))
    assert usual.names == ("lrpB000", "lrpB050")


@pytest.mark.parametrize(
    "config",
    [
        with_methods(*(name for name in METHODS if name not in FAMILIES["founding"].refused)),
        with_methods("rise", "lrp", settings=("rise:p=0.25", "lrp:rules=focus")),
    ],
)
def test_names_in_settings_are_those_of_the_maps(config: Config) -> None:
    names = [name for asked in explanations_of_run(config) for name in asked.names]
    assert names == map_names(config.attribution)
    assert len(set(names)) == len(names)


CHANGED = {
    "heatlas.pipeline.attribution.lrp.rules": {"lrp"},
    "heatlas.pipeline.attribution.lrp.propagation": {"lrp"},
    "heatlas.pipeline.attribution.graph.tape": {"lrp", "guided-backpropagation", "deeplift"},
    "heatlas.pipeline.attribution.gradient.guided_backprop": {"guided-backpropagation"},
    "heatlas.pipeline.attribution.perturbation.random_masks": {"rise", "lime"},
    "heatlas.pipeline.attribution.cam.weighted_maps": {"cam"},
    "heatlas.pipeline.attribution.network_view": set(METHODS),
    "heatlas.pipeline.regions.region_sums": set(METHODS),
    "heatlas.pipeline.attribution.registry": set(),
    "heatlas.pipeline.explaining.scan_jobs": set(),
    "heatlas.pipeline.explaining.stage": set(),
    "heatlas.pipeline.run.work.jobs": set(),
    "heatlas.pipeline.run.tables": set(),
}


@pytest.mark.parametrize("module", CHANGED)
def test_maps_are_stale_when_code_changes_that_makes_them(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> dict[str, str]:
        digests._modules_digest.cache_clear()
        return {entry.name: code_digest(explain_scan, entry.record.__module__) for entry in METHODS.values()}

    before, read = keys(), digests._module_code
    monkeypatch.setattr(digests, "_module_code", lambda name: read(name) + "changed" * (name == module))
    after = keys()
    monkeypatch.undo()
    digests._modules_digest.cache_clear()
    changed = {name for name in before if after[name] != before[name]}
    of_its_module = {
        entry.name for entry in METHODS.values() if entry.record.__module__ == METHODS["cam"].record.__module__
    }
    assert changed == (of_its_module if CHANGED[module] == {"cam"} else CHANGED[module])


def test_rankings_come_for_all_maps(run: OutsideRun) -> None:
    bilateral = read_table(run.layout.group / "relevance_bilateral.tsv", text_columns=["map", "group"])
    values = RelevanceValues.of(bilateral, read_table(run.layout.group / "predictions.tsv"))
    assert {one.map for one in rankings_of_run(values) if one.between == "folds"} == {"lrpB000", "lrpB050", NAME}


# Methods by name: every one is listed, its settings are read as its record has them, in their ranges.

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


# Every method explains every family of networks that it is defined for, and the others are refused by name.

DEEP = ("bcos-resnet18", "bcos-resnext50", "bcos-densenet121", "bcos-convnext-tiny", "bcos-vgg11")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in DEEP)) for name in BUILT]

MANY_PASSES = (
    "score-cam", "ablation-cam", "lime", "rise", "occlusion", "region-occlusion", "smoothgrad",
    "smooth-input-x-gradient", "smooth-integrated-gradients",
)  # fmt: skip
"""Methods that repeat a pass that others also make."""
REPEATED = (
    *MANY_PASSES, "integrated-gradients", "integrated-gradients-from-mean", "expected-gradients", "opti-cam",
    "region-shapley", "region-swap",
)  # fmt: skip
"""The same, where one pass takes long: what they add to it does not depend on the family."""
WIDE = ("seresnet50", "efficientnet-b0")
"""Families without a setting for fewer channels."""


def test_every_family_is_here() -> None:
    assert list(SMALL) == list(BUILT)
    assert all(set(family.refused) | set(family.needs) <= set(METHODS) for family in FAMILIES.values())


@pytest.mark.sample(135)  # every fifth: each family and each method is among them
@pytest.mark.parametrize(
    ("name", "method"),
    [
        pytest.param(name, method, marks=[pytest.mark.slow] * (name in DEEP or (name in WIDE and method in REPEATED)))
        for name in BUILT
        for method in METHODS
    ],
)
def test_a_finite_map_on_the_grid_of_the_input_or_a_refusal(name: str, method: str) -> None:
    family, entry = FAMILIES[name], METHODS[method]
    if method in family.refused:
        with pytest.raises(UsageError, match=rf"^{method.replace('+', '.')} .* {name}: ") as caught:
            family.require_method(method)
        assert family.refused[method] in str(caught.value)
        return
    model, volume = trained(name)
    given: dict[str, Any] = {**family.needs.get(method, {}), **QUICK.get(method, {})}
    if method == "occlusion":
        given = dict.fromkeys(("size", "stride"), min(volume.shape[2:]))
    if entry.needs_reference:
        given["reference"] = Reference(torch.rand(1, *volume.shape[1:]) * (volume != 0), ("sub-1",))
    if method.startswith("region-"):
        labels = torch.zeros(volume.shape[2:], dtype=torch.int64)
        labels[4:20, 4:20, 4:20] = 1
        given["regions"] = RegionLabels("one region", labels)
    built: Any = entry.record(**given)
    stage = entry.stage_of(model)
    if method in ("score-cam", "ablation-cam"):  # a pass per channel, of which the last stage has up to thousands
        stage = {"densenet121": 1, "seresnet50": 1, "efficientnet-b0": 2}.get(name, stage)
    answer = attribute(model, volume, 1, built, stage)
    if method in ("deeplift", "inherent"):
        assert answer.reference_value is not None
        difference = answer.start_value - answer.reference_value
        if not name.startswith("bcos-vit"):  # whose positions are no voxels
            torch.testing.assert_close(answer.values.flatten(1).sum(1), difference, rtol=1e-3, atol=1e-4)
    assert answer.values.shape == volume.shape
    assert bool(torch.isfinite(answer.values).all())
    if answer.ledger is not None:
        assert float(answer.ledger.residual.abs().max()) < 1e-5 * float(answer.values.abs().sum())


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_refused_would_not_have_worked(name: str) -> None:
    """A refusal that is declared is one that the method itself would have to make."""
    model, volume = trained(name)
    for method in FAMILIES[name].refused:
        entry = METHODS[method]
        given = {"reference": Reference(volume, ("sub-1",))} if entry.needs_reference else {}
        with pytest.raises((UsageError, BadInputError)):
            attribute(model, volume, 1, entry.record(**given), entry.stage_of(model))
