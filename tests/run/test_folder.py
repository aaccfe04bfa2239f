from __future__ import annotations

from pathlib import Path

import pytest

from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.config.settings import Config, PrivacyConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.folder import (
    RunInput,
    is_fingerprint_of,
    prepare_run_folder,
    read_run_config,
    read_run_input,
    recognise_run_folder,
)


@pytest.fixture
def source(tmp_path):
    (tmp_path / 'in "quoted"').mkdir()
    return RunInput(tmp_path / 'in "quoted"', "default")


def test_folder_is_made_recognised_and_continued(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    assert read_run_input(layout) == RunInput(source.input.resolve(), "default")
    prepare_run_folder(tmp_path / "out", source, Config(seed=7))
    assert read_config(layout.config).seed == 7


def test_folder_of_another_input_is_refused(tmp_path, source):
    prepare_run_folder(tmp_path / "out", source, Config())
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="another input"):
        prepare_run_folder(tmp_path / "out", RunInput(tmp_path / "other", "default"), Config())


def test_folder_with_other_files_is_refused_and_left_alone(tmp_path, source):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.docx").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        prepare_run_folder(tmp_path / "out", source, Config())
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.docx"]


def test_output_is_kept_out_of_the_input(tmp_path, source):
    for out in (source.input, source.input.parent, source.input / "out"):
        with pytest.raises(UsageError):
            prepare_run_folder(out, source, Config())
    prepare_run_folder(source.input / "derivatives" / "heatlas", source, Config())


def test_missing_input_is_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="no such folder"):
        prepare_run_folder(tmp_path / "out", RunInput(tmp_path / "absent", "default"), Config())
    assert not (tmp_path / "out").exists()


HIDDEN = Config(privacy=PrivacyConfig(shift_dates=True))
KEY, OTHER = "k" * 32, "o" * 32


def test_a_run_is_continued_with_its_own_key_and_does_not_hold_it(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, HIDDEN, KEY)
    before = layout.config.read_text()
    prepare_run_folder(tmp_path / "out", source, HIDDEN, KEY)
    assert layout.config.read_text() == before
    assert KEY not in before
    other = prepare_run_folder(tmp_path / "other", source, HIDDEN, KEY)
    assert read_run_input(other).key != read_run_input(layout).key, "the same key cannot be told from the outside"


@pytest.mark.parametrize(
    ("begun", "continued", "words"),
    [
        ((HIDDEN, KEY), (HIDDEN, OTHER), "another key"),
        ((HIDDEN, KEY), (HIDDEN, KEY + "k"), "another key"),
        ((HIDDEN, KEY), (Config(), None), "other privacy settings"),
        ((Config(), None), (HIDDEN, KEY), "other privacy settings"),
        ((HIDDEN, None), (HIDDEN, KEY), "another key"),
    ],
)
def test_what_hides_otherwise_does_not_continue_a_run(tmp_path, source, begun, continued, words):
    layout = prepare_run_folder(tmp_path / "out", source, *begun)
    before = layout.config.read_bytes()
    with pytest.raises(UsageError, match=words):
        prepare_run_folder(tmp_path / "out", source, *continued)
    assert layout.config.read_bytes() == before


@pytest.mark.parametrize("mark", ["", "scrypt", "scrypt:", "md5:00:00", "scrypt:00:\u00e9"])
def test_a_damaged_fingerprint_fits_no_key(mark):
    assert not is_fingerprint_of(mark, KEY)


def test_a_folder_that_holds_nothing_but_a_lock_is_empty(tmp_path, source):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".heatlas.lock").touch()
    (tmp_path / "out" / ".heatlas.lock.sub-01").touch()
    (tmp_path / "out" / ".config.toml.0a.tmp").touch()  # which another job is about to rename
    prepare_run_folder(tmp_path / "out", source, Config())


def test_a_folder_that_another_job_fills_meanwhile_is_a_run_of_the_same_input(tmp_path, source, monkeypatch):
    out, listed = tmp_path / "out", Path.iterdir

    def filled_meanwhile(folder):
        monkeypatch.setattr(Path, "iterdir", listed)
        names = list(listed(folder))
        prepare_run_folder(out, source, Config())
        return iter([*names, *listed(folder)])

    out.mkdir()
    monkeypatch.setattr(Path, "iterdir", filled_meanwhile)
    assert recognise_run_folder(out, source).config.is_file()


CHANGED = {
    "seed": ("seed = 43", "seed = 44"),
    "regions.atlas": ('atlas = "neuromorphometrics-cat12"', 'atlas = "aal3"'),
    "registration.resolution_mm": ("resolution_mm = 1.0", "resolution_mm = 2.0"),
    "cohort.positive": ('positive = "AD"', 'positive = "MCI"'),
    "attribution.betas": ("betas = [", "betas = [0.1, "),
    "statistics.confidence": ("confidence = 0.95", "confidence = 0.9"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_changed_after_the_run_is_named(tmp_path, source, name):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    old, new = CHANGED[name]
    text = layout.config.read_text()
    assert text.count(old) == 1
    layout.config.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_run_config(layout)
    said = str(caught.value)
    assert said.startswith(f"{layout.config}: {name} = ")
    assert "but the run was made with " in said
    prepare_run_folder(tmp_path / "out", source, read_config(layout.config))  # a run with it takes it over
    assert read_run_config(layout) == read_config(layout.config) != Config()


def test_the_title_of_the_report_may_change_and_older_runs_have_no_record(tmp_path, source):
    layout = prepare_run_folder(tmp_path / "out", source, Config())
    layout.config.write_text(layout.config.read_text().replace("\ntitle = ", '\ntitle = "New" # '))
    assert read_run_config(layout).report.title == "New"
    layout.settings.unlink()
    layout.config.write_text(layout.config.read_text().replace("seed = 43", "seed = 44"))
    assert read_run_config(layout).seed == 44
