"""Keys of work hold the code of its network, be it the program's or a plug-in's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from heatlas.pipeline.cohort.people.splits import Fold
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.explaining.scan_jobs import JobMaker, explanations_of_run
from heatlas.pipeline.models.families.registry import FAMILIES, code_of
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work import digests
from heatlas.pipeline.run.work.digests import DigestCache, import_closure
from heatlas.pipeline.training.stage import fold_job
from heatlas.studies.probes.records import ProbeConfig

FOLD = Fold(0, ("a",), ("b",), ("c",))
SCANS = [Scan(name, None, name, None, label="AD") for name in "abc"]
LAYERS = "heatlas.studies.bcos.layers"
STEM = "heatlas.studies.coda.network"


def keys_of(name: str, folder) -> list[str]:
    """Keys of training a network, and of explaining a scan by it."""
    digests._modules_digest.cache_clear()
    config = load_config(overrides={"model": {"architecture": name}, "attribution": {"methods": ["gradient"]}})
    layout, cache = RunLayout(folder), DigestCache(folder / "digests.json")
    training = fold_job(layout, FOLD, SCANS, None, config, dict.fromkeys("abc", "1"))
    maker = JobMaker(layout, "explaining", SimpleNamespace(version="1"), config, cache, None)
    return [training.key, maker.job("c", SCANS[2], [0], explanations_of_run(config), {}).key]


@pytest.mark.parametrize(
    ("name", "module", "changes"),
    [("bcos-simple", LAYERS, True), ("bcos-simple", STEM, False), ("founding", LAYERS, False), ("coda-s", STEM, True)],
)
def test_a_changed_layer_changes_the_keys_of_networks_that_have_it(name, module, changes, tmp_path, monkeypatch):
    before, read = keys_of(name, tmp_path), digests._module_code
    monkeypatch.setattr(digests, "_module_code", lambda other: read(other) + "changed" * (other == module))
    after = keys_of(name, tmp_path)
    monkeypatch.undo()
    digests._modules_digest.cache_clear()
    in_training = changes or module in import_closure([fold_job.__module__])  # while training imports the objectives
    assert [one != other for one, other in zip(before, after, strict=True)] == [in_training, changes]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_code_of_every_family_is_what_builds_it(name):
    """The program's families are in every key already, so theirs is not changed by naming them."""
    modules = code_of(NETWORKS[name](architecture=name))
    always = import_closure(["heatlas.pipeline.models.families.registry"])
    own = {module for module in modules if module.startswith("heatlas.pipeline.")}
    assert own <= always
    assert bool(set(modules) - always) == (FAMILIES[name].encoding == "pair" or name == "probe")
    assert not {module for module in always if module.startswith("heatlas.studies.")}


def test_the_code_of_a_probe_holds_that_of_its_backbone():
    of_bcos = code_of(ProbeConfig(body='{"architecture": "bcos-vgg11"}'))
    assert set(of_bcos) - set(code_of(ProbeConfig())) == {"heatlas.studies.bcos.records"}
