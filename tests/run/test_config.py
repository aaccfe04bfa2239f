from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run.config import Config
from pipeline.run.config_files import PRESETS, config_to_toml, load_config, read_config
from pipeline.run.errors import UsageError


@pytest.mark.parametrize("preset", ["default", "bohle2019", "demo"])
def test_written_configuration_is_read_back_equal(tmp_path, preset):
    config = load_config(preset)
    path = tmp_path / "config.toml"
    path.write_text(config_to_toml(config) + '\n[run]\ninput = "x"\n')
    assert read_config(path) == config


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
        "guided_backpropagation": True,
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


def test_founding_study_leaves_nothing_that_defines_it_to_defaults():
    written = tomllib.loads((PRESETS / "bohle2019.toml").read_text(encoding="utf-8"))
    assert {section: set(settings) - set(written[section]) for section, settings in FOUNDING_STUDY.items()} == {
        section: set() for section in FOUNDING_STUDY
    }


def test_file_wins_over_preset_and_option_over_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 5\n[training]\nlearning_rate = 1\n[cohort]\nfolds = 3\n")
    config = load_config("demo", path, {"seed": 6})
    assert (config.seed, config.training.learning_rate, config.cohort.folds) == (6, 1.0, 3)
    assert config.registration.resolution_mm == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nlearning_rat = 1\n", "training.learning_rat"),
        ("[nonsense]\nx = 1\n", "nonsense"),
        ("seed = true\n", "seed"),
        ("seed = 1.5\n", "seed"),
        ("training = 3\n", "training is a section"),
        ('[cohort]\nsplit = "random"\n', "'folds', 'single'"),
        ("[attribution]\nbetas = 1\n", "betas must be a list"),
        ("[attribution]\nbetas = []\n", "at least one"),
        ("[attribution]\nbetas = [0.005]\n", "two decimals"),
        ("[attribution]\nbetas = [nan]\n", "two decimals"),
        ("[cohort]\nfolds = 1\n", "folds must be 2"),
        ("[cohort]\ntest_participants_per_class = 0\n", "cohort.test_participants_per_class"),
        ("[cohort]\nvalidation_participants_per_class = 0\n", "cohort.validation_participants_per_class"),
        ("[model]\nchannels = []\npools = []\n", "model.channels must name"),
        ("[model]\nchannels = [8, 0]\npools = [2, 2]\n", "model.channels must name"),
        ("[model]\nchannels = [8, 8]\npools = [2, -1]\n", "model.pools must name"),
        ("[model]\nhidden_units = 0\n", "model.hidden_units"),
        ("seed =\n", "not valid TOML"),
    ],
)
def test_wrong_settings_are_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_config(file=path)


def test_every_beta_of_two_decimals_is_allowed():
    """0.29 * 100 is not 29 in floating point; nor is 0.57 * 100 equal to 57."""
    betas = tuple(float(f"{hundredths / 100:.2f}") for hundredths in range(1000))
    assert load_config(overrides={"attribution": {"betas": betas}}).attribution.betas == betas


def test_unknown_preset_lists_the_known():
    with pytest.raises(UsageError, match="bohle2019"):
        load_config("bohle")


def test_records_are_frozen():
    with pytest.raises(AttributeError):
        Config().seed = 1  # type: ignore[misc]
