"""Any method of the registry can explain a run: the same files for all, and keys that hold each method's own code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from outside_contrast import ATLAS, CONFIG, LABELLED, SPLIT, OutsideRun, make_run

from heatlas.pipeline.attribution.gradient.paths import IntegratedGradients
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.explained_scan import explain_scan
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run, require_explained
from heatlas.pipeline.explaining.stage import explain_scans
from heatlas.pipeline.models.families.foreign import ForeignConfig
from heatlas.pipeline.models.families.registry import FAMILIES
from heatlas.pipeline.models.inputs import from_network, read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import AttributionConfig, Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import DigestCache, code_digest
from heatlas.pipeline.statistics.comparison.rankings import rankings_of_run
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.studies.probes.records import ProbeConfig
from heatlas.workflows.preflight import require_settings

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
        OWN + "\ndef sine():\n    class Sine(nn.Module):\n        def forward(self, x):\n            return x.sin()\n"
        "    return nn.Sequential(Sine(), linear())\n"
    )

    def tried(methods: Sequence[str]) -> None:
        model = ForeignConfig(network=f"{tmp_path / 'own.py'}:sine")
        attribution = AttributionConfig(methods=tuple(methods))
        require_explained(replace(load_config(preset="patients"), model=model, attribution=attribution))

    tried(("gradient", "region-swap", "occlusion"))
    with pytest.raises(UsageError, match=r"attribution.methods: deeplift does not explain this network: .*sin"):
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
