"""Settings: how they are read, their ranges, and their page."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from collections.abc import Iterator
from copy import copy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from other_user import nobody
from printed_pages import REMEDY, help_texts, settings_page
from range_ends import ends

from heatlas.pipeline.run.config.files import (
    PRESETS,
    config_to_toml,
    load_config,
    read_config,
    toml_value,
    usual_sentence,
    with_section,
)
from heatlas.pipeline.run.config.networks import NETWORKS, ModelConfig
from heatlas.pipeline.run.config.ranges import (
    ODD,
    RISING,
    Count,
    above,
    at_least,
    between,
    kinds_of,
    matching,
    misfits,
    naming,
    problems,
    split_kind,
    unmet,
)
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.config.statistics import MOST_REPEATS
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder


@pytest.mark.parametrize("preset", ["default", "bohle2019", "demo"])
def test_written_configuration_is_read_back_equal(tmp_path, preset):
    config = load_config(preset)
    path = tmp_path / "config.toml"
    path.write_text(config_to_toml(config) + '\n[run]\ninput = "x"\n')
    assert read_config(path) == config


@settings(max_examples=30)  # each reads two whole configurations
@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"])))
def test_any_text_survives_toml(tmp_path_factory, title):
    path = tmp_path_factory.mktemp("c") / "config.toml"
    config = load_config(overrides={"report": {"title": title}})
    path.write_text(config_to_toml(config), encoding="utf-8")
    assert read_config(path).report.title == title


FOUNDING_STUDY = {
    "cohort": {
        "split": "single",
        "test_participants_per_class": 30,
        "validation_participants_per_class": 18,
        "diagnosis_rule": "diagnosis",
        "apply_outside_contrast": False,
    },
    "registration": {
        "transform": "antsRegistrationSyNQuick[s]",
        "resolution_mm": 1.0,
        "brain_extraction": "template-mask",
        "bias_correction": False,
        "hippocampus_source": "table",
    },
    "model": {
        "architecture": "founding",
        "field_of_view": "template",
        "channels": [8, 16, 32, 64],
        "pools": [2, 3, 2, 3],
        "hidden_units": 128,
        "dropout": 0.4,
    },
    "training": {
        "learning_rate": 1e-4,
        "learning_rate_schedule": "constant",
        "weight_decay": 1e-4,
        "batch_size": 4,
        "max_epochs": 200,
        "min_epochs": 15,
        "patience": 8,
        "flip_probability": 0.5,
        "max_shift_voxels": 2,
        "balance_classes": False,
    },
    "attribution": {
        "betas": [0, 0.25, 0.5, 0.75, 1],
        "methods": ["lrp", "guided-backpropagation"],
        "batch_norm": "identity",
        "start_value": "probability",
    },
    "regions": {"atlas": "neuromorphometrics-spm12"},
    "statistics": {"permutations": 1000},
}
"""Table 0.2 of the specification of the study's code and A.1 to A.5 of that of its text."""


@pytest.mark.parametrize("section", FOUNDING_STUDY)
def test_founding_study_settings(section):
    resolved = tomllib.loads(config_to_toml(load_config("bohle2019")))
    assert resolved["seed"] == 43
    assert {name: resolved[section][name] for name in FOUNDING_STUDY[section]} == FOUNDING_STUDY[section]


NOT_OF_THE_STUDY = {
    "cohort": {
        "folds", "balance", "validation_fraction", "mci_horizon_months", "freesurfer_folder", "clinical_columns",
        "include", "oasis_image", "table",
    },
    "registration": {"mask_pattern", "synthstrip_model", "seed"},
    "training": {"regression_loss", "device", "devices", "threads"},
    "training.augmentation": {
        "rotation_degrees", "scaling", "bias_field_strength", "gamma", "noise_sd", "cutout_count", "cutout_voxels",
    },
    "attribution": {"reference", "reference_size", "reference_match"},
    "regions": {"own_labels"},
}  # fmt: skip
"""Settings that the preset need not name: of folds, MCI, masks and augmentation that it does not use, of references
that its maps do not have, and of the machine."""


def settings_in(section: dict) -> set[str]:
    return {name for name, value in section.items() if not isinstance(value, dict)}


@pytest.mark.parametrize(
    "section",
    ["cohort", "registration", "model", "training", "training.augmentation", "attribution", "regions", "statistics"],
)
def test_founding_study_leaves_nothing_that_its_results_depend_on_to_defaults(section):
    resolved = tomllib.loads(config_to_toml(load_config("bohle2019")))
    written = tomllib.loads((PRESETS / "bohle2019.toml").read_text(encoding="utf-8"))
    for name in section.split("."):
        resolved, written = resolved[name], written[name]
    assert settings_in(resolved) - settings_in(written) == NOT_OF_THE_STUDY.get(section, set())
    assert {name: resolved[name] for name in settings_in(written)} == {n: written[n] for n in settings_in(written)}


def test_file_wins_over_preset_and_option_over_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 5\n[training]\nlearning_rate = 1\n[cohort]\nfolds = 3\n")
    config = load_config("demo", path, {"seed": 6})
    assert (config.seed, config.training.learning_rate, config.cohort.folds) == (6, 1.0, 3)
    assert config.registration.resolution_mm == 4.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nlearning_rat = 1\n", "training.learning_rat"),
        ("[nonsense]\nx = 1\n", "nonsense"),
        ("seed = true\n", "seed"),
        ("seed = 1.5\n", "seed"),
        ("training = 3\n", "training is a section"),
        ('[cohort]\nsplit = "random"\n', "'folds', 'single'"),
        ("[attribution]\nbetas = 1\n", "betas = 1: must be a list of numbers"),
        ("[attribution]\nbetas = []\n", "at least one"),
        ("[attribution]\nbetas = [0.005]\n", "two decimals"),
        ("[attribution]\nbetas = [nan]\n", "attribution.betas = nan: must be a finite number"),
        ("[cohort]\nfolds = 1\n", "folds must be 2"),
        ("[cohort]\ntest_participants_per_class = 0\n", "cohort.test_participants_per_class"),
        ("[cohort]\nvalidation_participants_per_class = 0\n", "cohort.validation_participants_per_class"),
        ("[model]\nchannels = []\npools = []\n", "model.channels must name"),
        ("[model]\nchannels = [8, 0]\npools = [2, 2]\n", "model.channels must name"),
        ("[model]\nchannels = [8, 8]\npools = [2, -1]\n", "model.pools must name"),
        ("[model]\nhidden_units = 0\n", "model.hidden_units"),
        (
            '[model]\narchitecture = "resnet11"\n',
            "resnet11.*Did you mean resnet1.*Known are founding, linear, sfcn, conv5-fc3, r",
        ),
        ('[model]\narchitecture = ["resnet10"]\n', "no such family"),
        ('[model]\narchitecture = "resnet10"\nwidth = 9.0\n', "model.width must lie"),
        ('[model]\narchitecture = "coda-s"\nbound = "wb"\n', "choose the architecture coda-s-wb"),
        ('[model]\narchitecture = "coda-s"\nembedding = 8\n', "no map of voxels"),
        ("[training]\nweight_penalty = 0.1\n", "needs a B-cos or CoDA network, and 'founding' is neither"),
        ('[model]\narchitecture = "densenet121"\ngrowth = 0\n', "model.growth must lie"),
        ('[model]\narchitecture = "sfcn"\nchannels = [8]\n', "model.channels must name at least two"),
        ('[model]\narchitecture = "conv5-fc3"\nhidden_units = []\n', "model.hidden_units must name at least one"),
        ('[model]\narchitecture = "seresnet50"\ndropout = 1.0\n', "model.dropout must lie"),
        ('[model]\narchitecture = "efficientnet-b0"\ndrop_connect = 1.0\n', "model.drop_connect must lie"),
        ("seed =\n", "not valid TOML"),
        ("seed = " + "9" * 6000 + "\n", "not valid TOML"),
    ],
)
@pytest.mark.studies
def test_wrong_settings_are_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as refused:
        load_config(file=path)
    assert str(path) in str(refused.value)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", NETWORKS)
def test_settings_of_another_family_are_refused_by_name(tmp_path, family):
    path = tmp_path / "mine.toml"
    own = NETWORKS[family](family).own
    for other, record in NETWORKS.items():
        for name, value in record(other).own.items():
            value = own.get(name, value)
            path.write_text(f'[model]\narchitecture = "{family}"\n{name} = {toml_value(value)}\n')
            if name in own:
                assert load_config(file=path).model.architecture == family
                continue
            with pytest.raises(UsageError) as refused:
                load_config(file=path)
            for words in (str(path), f"model.{name} is a setting of", repr(family), "Remove", 'architecture = "'):
                assert words in str(refused.value)


@pytest.mark.parametrize("preset", ["default", "demo", "bohle2019"])
@pytest.mark.parametrize("family", NETWORKS)
def test_a_file_chooses_a_network_over_a_preset_and_is_written_back(tmp_path, preset, family):
    """Pools of a preset are not settings of a ResNet; what the preset says of the field of view stays."""
    path = tmp_path / "mine.toml"
    path.write_text(f'[model]\narchitecture = "{family}"\n')
    config, usual = load_config(preset, path), load_config(preset)
    fresh = usual.model if family == "founding" else NETWORKS[family](family, **usual.model.shared)
    assert config.model == fresh
    path.write_text(config_to_toml(config))
    assert read_config(path) == config


def settings_of_kind(*kinds: type, record: Any = Config, where: str = "") -> Iterator[tuple[str, str, bool]]:
    """Section, name, and whether it is a list, of all settings that hold such values."""
    for name, kind in get_type_hints(record).items():
        many = get_origin(kind) is tuple
        if kind is ModelConfig:
            found = [s for network in NETWORKS.values() for s in settings_of_kind(*kinds, record=network, where=name)]
            yield from dict.fromkeys(found)
        elif dataclasses.is_dataclass(kind):
            yield from settings_of_kind(*kinds, record=kind, where=f"{where}.{name}".strip("."))
        elif (get_args(kind)[0] if many else kind) in kinds:
            yield where, name, many


def toml_of(section: str, name: str, many: bool, value: str) -> str:
    family = next(iter(f for f, record in NETWORKS.items() if name in get_type_hints(record)), "founding")
    chosen = f'architecture = "{family}"\n' if section == "model" and name != "architecture" else ""
    return (f"[{section}]\n{chosen}" if section else "") + f"{name} = {f'[{value}]' if many else value}\n"


REFUSED = {
    float: ("nan", "inf", "-inf", "1e400", "-1.0", "true", '"1"'),
    int: ("-1", "1.5", "true", '"1"', "9" * 400, "9" * 30),
    str: (r'"a\u0000b"', r'"a\nb"', r'"\u001b[31m"', "1"),
}
MINUS_ONE = {("registration", "seed"), ("objective", "stage")}  # the seed of the run, the last stage


@pytest.mark.parametrize(
    ("kind", "setting"),
    [pytest.param(kind, one, id=".".join(one[:2])) for kind in REFUSED for one in settings_of_kind(kind)],
)
def test_no_setting_takes_a_value_that_makes_no_sense(tmp_path, kind, setting):
    """Infinite, negative and huge numbers, and control characters, whatever the setting is."""
    path = tmp_path / "mine.toml"
    for value in REFUSED[kind]:
        if value == "-1" and setting[:2] in MINUS_ONE:
            continue
        path.write_text(toml_of(*setting, value))
        with pytest.raises(UsageError) as refused:
            load_config(file=path)
        assert setting[1] in str(refused.value), value
        assert str(path) in str(refused.value), value


@pytest.mark.parametrize(
    ("section", "name", "largest", "too_large"),
    [
        ("training", "learning_rate", 10.0, 1e300),
        ("training", "weight_decay", 10.0, 10.01),
        ("training", "batch_size", 100_000, 100_001),
        ("training", "threads", 1024, 1_000_000),
        ("statistics", "permutations", 10_000_000, 10**12),
        ("statistics", "bootstrap_samples", 10_000_000, 10**12),
        ("statistics.shortcuts", "permutations", 10_000_000, 10_000_001),
        ("statistics.normative", "resamples", 10_000_000, 10_000_001),
    ],
)
def test_no_setting_takes_more_than_can_be_done(tmp_path, section, name, largest, too_large):
    path = tmp_path / "mine.toml"
    path.write_text(toml_of(section, name, False, repr(largest)))
    load_config(file=path)
    path.write_text(toml_of(section, name, False, repr(too_large)))
    with pytest.raises(UsageError, match=rf"configuration: {section}\.{name} must lie .* {int(largest):,} "):
        load_config(file=path)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[training]\nlearning_rat = 1\n", "training.learning_rate"),
        ("learning_rate = 1\n", "training.learning_rate"),
        ("[training]\nfolds = 3\n", "cohort.folds"),
        ("[trainin]\nlearning_rate = 1\n", "training"),
        ("[statistics.subgroup]\nvariables = []\n", "statistics.subgroups"),
        ("[statistics.harmonisation]\nsite_colum = 'x'\n", "statistics.harmonisation.site_column"),
    ],
)
def test_an_unknown_setting_names_its_file_and_the_nearest_known(tmp_path, text, meant):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        load_config(file=path)
    assert str(refused.value).startswith(f"{path}: unknown setting ")
    assert f"Did you mean {meant}?" in str(refused.value)
    with pytest.raises(UsageError, match="unknown setting"):
        read_config(path)


@pytest.mark.parametrize(
    ("text", "setting", "instead", "read"),
    [
        ('networks = "some"\n', "networks", "All networks that may explain a scan do", ("lrp",)),
        ("guided_backpropagation = true\n", "guided_backpropagation", "in attribution.methods",
         ("lrp", "guided-backpropagation")),
        ("guided_backpropagation = false\n", "guided_backpropagation", "in attribution.methods", ("lrp",)),
    ],
)  # fmt: skip
def test_a_setting_that_is_gone_is_read_in_a_run_and_refused_in_new_settings(tmp_path, text, setting, instead, read):
    path, of_run = tmp_path / "mine.toml", tmp_path / "config.toml"
    methods = "" if "guided" in text else 'methods = ["lrp"]\n'
    path.write_text(f"[attribution]\nbetas = [0.5]\n{methods}{text}")
    for settings_of in (lambda: load_config(file=path), lambda: with_section(Config(), path, "attribution")):
        with pytest.raises(UsageError) as refused:
            settings_of()
        assert str(refused.value).startswith(f"{path}: unknown setting attribution.{setting}. ")
        assert instead in str(refused.value)
        assert "\n" not in str(refused.value)
    of_run.write_text(path.read_text() + '[run]\ninput = "x"\n')
    for config in (read_config(path), read_config(of_run), load_config(file=of_run)):
        assert (config.attribution.betas, config.attribution.methods) == ((0.5,), read)


def test_any_name_of_a_folder_is_read_back_from_toml():
    """A path may hold control characters, though a setting may not."""
    name = "".join(map(chr, range(1, 128))) + "ö"
    assert tomllib.loads(f"input = {toml_value(name)}")["input"] == name


@pytest.mark.parametrize("text", ["speed = 1\n", "[training]\nlearning_rat = 1\n", "seed = true\n", "seed =\n"])
def test_the_file_of_an_unknown_setting_or_type_is_named(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for read in (read_config, lambda path: load_config(file=path)):
        with pytest.raises(UsageError, match=r"mine\.toml: "):
            read(path)


def test_a_file_may_make_sense_only_with_the_preset_and_the_options(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[cohort]\npositive = "CN"\n[model]\npools = [2, 2, 2, 2]\n')
    assert load_config("demo", path, {"cohort": {"negative": "AD"}}).cohort.positive == "CN"


def test_the_configuration_of_a_run_repeats_it(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('[report]\ntitle = "Mine"\n[privacy]\npseudonyms = ["sites"]\n')
    config = load_config("bohle2019", mine, {"seed": 7, "registration": {"resolution_mm": 2.0}})
    (tmp_path / "in").mkdir()
    layout = prepare_run_folder(tmp_path / "out", RunInput(tmp_path / "in", "bohle2019"), config, "k" * 32)
    assert load_config(file=layout.config) == load_config("demo", layout.config) == config


def test_what_the_cohort_names_is_looked_for_beside_the_settings_file_first(tmp_path, monkeypatch):
    (tmp_path / "study").mkdir()
    mine = tmp_path / "study" / "mine.toml"
    mine.write_text('[cohort]\nwithout = "left_out.tsv"\nfreesurfer_folder = "subjects"\n')
    (tmp_path / "left_out.tsv").touch()
    monkeypatch.chdir(tmp_path)
    cohort = load_config(file=mine).cohort
    assert (cohort.without, cohort.freesurfer_folder) == ("left_out.tsv", "subjects"), "from the folder of the command"
    (tmp_path / "study" / "left_out.tsv").touch()
    assert load_config(file=Path("study/mine.toml")).cohort.without == str(tmp_path / "study" / "left_out.tsv")
    assert load_config(file={"cohort": {"without": "left_out.tsv"}}).cohort.without == "left_out.tsv"


def test_a_byte_order_mark_is_no_part_of_the_settings(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 5\n")
    assert load_config(file=path).seed == 5


def folder(path):
    path.mkdir()


UNREADABLE = {
    "a folder": folder,
    "a named pipe": os.mkfifo,
    "a number of 6000 digits": lambda path: path.write_text("seed = " + "9" * 6000),
    "not UTF-8": lambda path: path.write_bytes(b'title = "caf\xe9"\n'),
    "UTF-16": lambda path: path.write_text("seed = 5\n", encoding="utf-16"),
    "a zero byte": lambda path: path.write_bytes(b"seed = 5\x00\n"),
    "deeply nested": lambda path: path.write_text("seed = " + "[" * 100_000),
    "absent": lambda path: None,
    "not permitted": lambda path: (path.write_text("seed = 5\n"), path.chmod(0)),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, kind):
    path = tmp_path / "mine.toml"
    UNREADABLE[kind](path)
    with nobody(tmp_path), pytest.raises(UsageError, match=r"mine\.toml: "):
        load_config(file=path)


def test_a_name_that_is_too_long_is_named(tmp_path):
    with pytest.raises(UsageError, match="too long"):
        load_config(file=tmp_path / ("n" * 300))


def test_every_beta_of_two_decimals_is_allowed():
    """0.29 * 100 is not 29 in floating point; nor is 0.57 * 100 equal to 57."""
    betas = tuple(float(f"{hundredths / 100:.2f}") for hundredths in range(1000))
    assert load_config(overrides={"attribution": {"betas": betas}}).attribution.betas == betas


@pytest.mark.parametrize("preset", ["bohle", "", "../presets/demo", str(PRESETS / "demo"), "MINE", "n" * 300, "a\0"])
def test_only_the_name_of_a_preset_is_known(tmp_path, preset):
    (tmp_path / "mine.toml").write_text("seed = 5\n")
    with pytest.raises(UsageError, match=r"unknown\..* Known are default, bohle2019, demo"):
        load_config(preset.replace("MINE", str(tmp_path / "mine")))


def test_records_are_frozen():
    with pytest.raises(AttributeError):
        Config().seed = 1  # type: ignore[misc]


@pytest.mark.studies
def test_an_architecture_brings_its_usual_settings_and_every_setting_of_the_file_stays(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\narchitecture = "bcos-simple"\n[training]\nlearning_rate = 0.5\n')
    config = load_config("demo", path)
    assert config.attribution.methods == ("inherent",)
    assert (config.training.learning_rate, config.training.clip_gradients) == (0.5, 0.01)
    assert config.training.max_epochs == load_config("demo").training.max_epochs
    assert "attribution.methods" in usual_sentence(config)
    assert "learning_rate =" not in usual_sentence(config)
    path.write_text('[model]\nb = 0.5\narchitecture = "bcos-simple"\n')
    with pytest.raises(UsageError, match=r"model\.b must lie between 1 and 8"):
        load_config(file=path)


def test_a_command_takes_settings_of_its_own_section_only(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[evaluation]\nscans = 3\n")
    changed = with_section(load_config(), file, "evaluation")
    assert (changed.evaluation.scans, changed.evaluation.steps) == (3, 20)
    assert dataclasses.replace(changed, evaluation=load_config().evaluation) == load_config()
    file.write_text("[training]\nbatch_size = 3\n")
    with pytest.raises(UsageError, match=r"training belongs to heatlas run; this command reads \[evaluation\] only"):
        with_section(load_config(), file, "evaluation")


# Every range of every setting of a run: refused just outside by table and key, accepted at its ends.


def bounded(record: Any, where: str) -> Iterator[tuple[str, Any, str, Any, bool]]:
    """Section, record, setting, value and whether it is allowed, for every end of every range."""
    for name, kind in kinds_of(type(record)).items():
        default = getattr(record, name)
        if kind is ModelConfig:
            for family, network in NETWORKS.items():
                yield from bounded(network(family), "model")
        elif is_dataclass(kind):
            yield from bounded(default, f"{where}.{name}".strip("."))
        for value, allowed in ends(kind, default):
            yield where, record, name, value, allowed


ENDS = list(bounded(Config(), ""))
OF_SETTING = {
    setting: [one for one in ENDS if f"{one[0]}.{one[2]}" == setting]
    for setting in dict.fromkeys(f"{where}.{name}" for where, _, name, _, _ in ENDS)
}


def test_every_kind_of_setting_is_among_them() -> None:
    assert len(ENDS) > 250
    for name in (
        ".seed", "cohort.folds", "model.width", "model.channels", "training.augmentation.gamma", "objective.weight",
        "statistics.confidence", "statistics.subgroups.mmse_bands", "evaluation.grids.layout", "cluster.gpus",
    ):  # fmt: skip
        assert name in OF_SETTING


@pytest.mark.parametrize("setting", OF_SETTING)
def test_the_ends_of_ranges(setting: str) -> None:
    for where, record, name, value, allowed in OF_SETTING[setting]:
        changed = copy(record)
        object.__setattr__(changed, name, value)
        assert [misfit for misfit, _, _ in misfits(changed)] == ([] if allowed else [name]), value
        if allowed:
            continue
        settings: Any = {name: value, **({"architecture": record.architecture} if where == "model" else {})}
        for section in reversed(where.split(".") if where else []):
            settings = {section: settings}
        with pytest.raises(UsageError) as refused:
            load_config(overrides=settings)
        words = f"{where}.{name}".strip(".")
        assert f"{words} must " in str(refused.value) or f"{words} = " in str(refused.value)


@pytest.mark.parametrize(
    ("section", "name", "allowed", "refused", "sentence"),
    [
        ("statistics.voxelwise", "permutations", (0, 99, MOST_REPEATS), (-1, 1, 98, MOST_REPEATS + 1), "0, or between"),
        ("objective", "weight", ("usual", 0, 1e6), (-0.1, 1e6 + 1), "between 0 and 1,000,000, or be 'usual'"),
        ("objective", "stage", ("usual", -1, 0, 7), (-2,), "must be -1 or more, or be 'usual'"),
        ("training.augmentation", "gamma", ([0.5, 10.0],), ([1.0, 1.0], [2.0, 1.0]), "in rising order, each above 0"),
        ("statistics.subgroups", "mmse_bands", ([], [24, 30]), ([27, 24], [24, 24]), "must be in rising order"),
        ("statistics.main_effects", "variables", ([], ["a", "b"]), (["a", "a"],), "must name each column once"),
        ("statistics.group_comparisons", "comparisons", (["TP/FN"],), (["TP/TP"], ["TP"], ["a/TP"]), "each be a pair"),
        ("statistics.group_comparisons", "metrics", (["sum"],), ([], ["sum", "sum"]), "at least one metric, each once"),
        ("statistics.primary", "biomarker", ("volume of A",), ("own volume/tiv", " "), "one number per scan: name"),
        ("statistics.primary", "region", ("a b",), ("", " "), "must not be empty"),
        ("attribution", "betas", ([0.29, 9.99],), ([0.001], [1, 1.0]), "each once, each in [0, 10), each of at most"),
    ],
)
def test_other_limits(section: str, name: str, allowed: tuple, refused: tuple, sentence: str) -> None:
    def loaded(value: object) -> Config:
        settings: Any = {name: value}
        for part in reversed(section.split(".")):
            settings = {part: settings}
        return load_config(overrides=settings)

    for value in allowed:
        loaded(value)
    for value in refused:
        with pytest.raises(UsageError) as error:
            loaded(value)
        assert str(error.value).startswith(f"configuration: {section}.{name} must ")
        assert sentence in str(error.value)


@given(st.floats(), st.floats(-10, 10), st.floats(0, 10))
def test_ranges_hold_what_their_sentences_say(value: float, low: float, width: float) -> None:
    high = low + width
    assert between(low, high).holds(value) == (low <= value <= high)
    assert at_least(low).holds(value) == (low <= value < math.inf)
    assert at_least(low, below=high).holds(value) == (low <= value < high)
    assert above(low).holds(value) == (low < value < math.inf)
    assert above(low, up_to=high).holds(value) == (low < value <= high)
    assert above(low, below=high).holds(value) == (low < value < high)


def test_a_range_of_a_list_is_one_of_each_element_and_names_what_is_wrong() -> None:
    assert unmet([between(0, 1)], (0.5, 2.0)) == "must each lie between 0 and 1"
    assert unmet([naming(1, "block"), ODD], (3, 4)) == "must name at least one block, each odd"
    assert unmet([RISING, above(0)], ()) == ""
    assert unmet([matching("a+", "be of a")], "aab") == "must be of a"
    assert split_kind(Count) == (int, (at_least(1),))


def test_values_of_another_type_are_refused_in_records_too() -> None:
    with pytest.raises(UsageError, match=r"configuration: seed must be a whole number"):
        replace(Config(), seed=True)
    assert problems(replace(Config().cohort, split="thirds"), "cohort.") == [
        "cohort.split must be one of 'folds', 'single'"
    ]


# docs/settings.md is what the declarations of the settings say, and every setting is explained.

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def records(record: type) -> Iterator[type]:
    yield record
    kinds = get_type_hints(record)
    for field in fields(record):
        if is_dataclass(kinds[field.name]):
            yield from records(kinds[field.name])


@pytest.mark.studies
def test_the_page_is_made_from_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), REMEDY


@pytest.mark.parametrize("record", [*records(Config), *dict.fromkeys(NETWORKS.values())], ids=lambda one: one.__name__)
def test_every_setting_is_explained(record: type) -> None:
    kinds, texts = get_type_hints(record), help_texts(record)
    names = [field.name for field in fields(record) if not is_dataclass(kinds[field.name])]
    missing = [name for name in names if not texts.get(name)]
    assert not missing


@pytest.mark.studies
def test_rows_say_kind_default_and_meaning() -> None:
    page = settings_page()
    assert page.count("## `[statistics.primary]`") == 1
    for row in (
        "| `accumulate` | whole number, between 1 and 1,000 | `1` | Batches whose gradients are averaged ",
        '| `flagged` | "keep", "drop", "ask" | `"keep"` | What happens to scans whose registration is in doubt; `ask` ',
        "| `betas` | list of numbers, at least one value, each once, each in [0, 10), each of at most ",
        "| `gamma` | list of 2 numbers, in rising order, each above 0 and up to 10 | `[0.7, 1.5]` | Lowest and ",
        '| `weight` | "usual" or number, between 0 and 1,000,000 | `"usual"` | Weight of the loss ',
        '| `reference_match` | list of "age", "sex", "site", each value once | `[]` | Take the ',
        '| `architecture` | text | `"founding"` | Name of the family. |',
        '"group", "position", "all" | `"position"` | Normalisation',  # another default than the base's
    ):
        assert row in page


@pytest.mark.studies
def test_help_of_a_base_is_inherited() -> None:
    texts = help_texts(NETWORKS["bcos-vgg11"])
    assert texts["b"].startswith("Exponent of all layers.")
    assert texts["width"].startswith("Factor on the channels; 1 gives 64 to 512")
