"""Exit codes and one readable line; interrupts; the commands as functions."""

from __future__ import annotations

import errno
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
from other_user import nobody
from printed_pages import REMEDY, commands_page

import heatlas
import heatlas.workflows.adni
from heatlas.pipeline.attribution.registry import METHODS
from heatlas.pipeline.models.families.registry import FAMILIES
from heatlas.pipeline.run.config.files import load_config, preset_names
from heatlas.pipeline.run.config.ranges import ARGUMENTS
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder, run_lock
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.workflows import commands
from heatlas.workflows.command_line import build_parser, main, read_command
from heatlas.workflows.commands import Apply, Evaluate, Run
from heatlas.workflows.library import filled
from heatlas.workflows.preflight import settings_of

# Exit codes and one readable line for what users get wrong.


def write_bids(folder, people: dict[str, str]) -> None:
    rows = ["participant_id\tage\tsex\tdiagnosis"]
    for name, diagnosis in people.items():
        anat = folder / name / "anat"
        anat.mkdir(parents=True)
        image = nib.Nifti1Image(np.arange(7 * 9 * 11, dtype=np.int16).reshape(7, 9, 11), np.diag([2, 2, 2, 1]))
        nib.save(image, anat / f"{name}_T1w.nii.gz")
        rows.append(f"{name}\t70\tF\t{diagnosis}")
    (folder / "participants.tsv").write_text("\n".join(rows) + "\n")
    (folder / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.10.0"}')


@pytest.fixture
def people():
    return {f"sub-{i:02d}": "CN" if i % 2 else "AD" for i in range(24)}


def test_check_of_a_good_dataset(tmp_path, people, capsys):
    write_bids(tmp_path, people)
    assert main(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "24 scans found of 24 participants" in said
    assert "AD: 12 scans of 12 participants" in said


def test_models_lists_every_family_with_its_settings_and_refusals(capsys):
    assert main(["models", "--resolution", "3"]) == 0
    said = capsys.readouterr().out
    for name, family in FAMILIES.items():
        part = said.split(f"\n{name}\n")[-1] if name != "founding" else said
        for setting in family.settings(architecture=name).own:
            assert f"{setting} = " in part
        for method, reason in family.refused.items():
            assert f"{method}: {reason}" in part
    assert "brain at 3 mm     14,357,442 parameters" in said
    assert "voxels is too small for founding" in said
    assert 'batch_norm = "identity"' in said
    assert main(["models", "--resolution", "30"]) == 2


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ("nothing there", 65, "no such folder"),
        ("empty folder", 65, ""),
        ("one class", 65, "CN"),
        ("too few people", 65, "fold"),
        ("unknown contrast", 65, "diagnosis"),
    ],
)
def test_unusable_input(tmp_path, people, capsys, change, code, words):
    folder = tmp_path / "data"
    options = []
    if change != "nothing there":
        folder.mkdir()
    if change == "one class":
        write_bids(folder, dict.fromkeys(people, "AD"))
    if change == "too few people":
        write_bids(folder, dict(list(people.items())[:6]))
    if change == "unknown contrast":
        write_bids(folder, people)
        options = ["--contrast", "tremor=no,yes"]
    assert main(["check", str(folder), *options]) == code
    said = capsys.readouterr().err
    assert said.startswith("heatlas: ")
    assert "Traceback" not in said
    assert words in said


def test_usage_errors(tmp_path, people, capsys):
    write_bids(tmp_path, people)
    assert main(["check", str(tmp_path), "--contrast", "diagnosis"]) == 2
    assert main(["check", str(tmp_path), "--preset", "bohle"]) == 2
    assert main(["report", str(tmp_path)]) == 2
    assert main(["explain", str(tmp_path), "--method", "grad-cam"]) == 2
    assert "Traceback" not in capsys.readouterr().err


MISTAKES = {
    "no command": ([], 2, ["usage: heatlas [-h]", "    check     say what", "Exit codes: 0 done"]),
    "command": (["chek", "IN"], 2, ["chek: unknown. Did you mean check? Known are demo, check"]),
    "option": (["check", "IN", "--nprocs", "2"], 2, ["unrecognized arguments: --nprocs 2.\n"]),
    "option of a run": (["run", "IN", "OUT", "--nprocs", "2"], 2, ["--nprocs 2. Did you mean --n-procs?"]),
    "executor": (["check", "IN", "--executor", "slrum"], 2, ["Did you mean slurm? Give a Python file, or one of "]),
    "rule": (["check", "IN", "--include", "agee >= 60"], 65, ["agee. Did you mean age? Columns with values: "]),
    "id": (
        ["check", "IN", "--contrast", "group=HC,AD", "--include", "scan_id not in ['sub-00_T1w', 'sub-1_T1w']"], 65,
        ["cohort.include: no scan has the scan_id sub-1_T1w. Did you mean sub-01_T1w? The "],
    ),
    "person": (
        ["check", "IN", "--contrast", "group=HC,AD", "--participant-label", "00", "1"], 65,
        ["--participant-label 1: no such participant among the ", "Did you mean sub-01?"],
    ),
    "name of an atlas": (
        ["check", "IN", "--config", "[regions]\natlas = 'neuromorphometrics'"], 2,
        ["Did you mean neuromorphometrics-cat12?"],
    ),
    "stage": (["check", "IN", "--stop-after", "train"], 2, ["Did you mean training?"]),
    "preset": (["check", "IN", "--preset", "dmo"], 2, ["--preset dmo: unknown. Did you mean demo? Known are default,"]),
    "epoch": (["check", "IN", "--config", "[training]\nepoch = 5"], 2, ["Did you mean training.max_epochs?"]),
    "epochs": (["check", "IN", "--config", "[training]\nepochs = 5"], 2, ["Did you mean training.max_epochs?"]),
    "rate": (["check", "IN", "--config", "lr = 0.1"], 2, ["Did you mean training.learning_rate?"]),
    "batch": (["check", "IN", "--config", "[training]\nbatch = 5"], 2, ["Did you mean training.batch_size?"]),
    "atlas": (["check", "IN", "--config", "[regions]\natlas_name = 'aal'"], 2, ["Did you mean regions.atlas?"]),
    "section": (["check", "IN", "--config", "[trainng]\nseed = 1"], 2, ["Did you mean training?"]),
    "method": (
        ["check", "IN", "--config", "[attribution]\nmethods = ['gradcam']"], 2,
        ["gradcam: unknown. Did you mean grad-cam?"],
    ),
    "case of a class": (["check", "IN", "--contrast", "group=hc,ad"], 65, ["Did you mean --contrast group=HC,AD?"]),
    "class": (["check", "IN", "--contrast", "group=CN,ADD"], 65, ["Did you mean --contrast group=HC,AD?"]),
    "column": (["check", "IN", "--contrast", "gruop=HC,AD"], 65, ["Did you mean --contrast group=HC,AD?"]),
    "column by meaning": (["check", "IN", "--target", "gender"], 65, ["Did you mean sex?"]),
    "no contrast": (["check", "IN"], 65, ["Did you mean --contrast group=HC,AD?"]),
    "one image": (["check", "IMAGE"], 65, ["is one image. The networks of a finished run explain it: heatlas apply "]),
    "one image to run": (["run", "IMAGE", "OUT"], 65, ["heatlas apply RUN sub-00_T1w.nii.gz OUT"]),
    "a run": (["check", "RUN"], 65, ["is the folder of a run, not of scans.", "heatlas report ", "heatlas apply "]),
    "a run to run": (["run", "RUN", "OUT"], 65, ["is the folder of a run, not of scans."]),
    "two people": (
        ["check", "IN", "--contrast", "group=HC,AD", "--participant-label", "00", "01"], 65,
        ["cohort.folds = 5: each ", "at least 2 of HC, 2 of AD: the fewest are 3 of each class, with cohort.folds = 3"],
    ),
}  # fmt: skip
"""What beginners typed, the exit code, and what the message must say (../shared/audits/ux.md, section 2)."""


@pytest.mark.parametrize(("words", "code", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_by_what_was_meant(tmp_path, people, capsys, monkeypatch, words, code, parts):
    monkeypatch.setattr("heatlas.workflows.command_line.import_ahead", lambda _: None)
    write_bids(tmp_path / "in", people)
    table = tmp_path / "in" / "participants.tsv"
    table.write_text(table.read_text().replace("diagnosis", "group").replace("CN", "HC"))
    prepare_run_folder(tmp_path / "begun", RunInput(tmp_path / "in", "default"), Config())
    (tmp_path / "mine.toml").write_text(words[-1] if words else "")
    image = tmp_path / "in" / "sub-00" / "anat" / "sub-00_T1w.nii.gz"
    places = {"IN": tmp_path / "in", "RUN": tmp_path / "begun", "OUT": tmp_path / "out", "IMAGE": image}
    given = [str(places.get(word, word)) for word in words]
    if "--config" in words:
        given[-1] = str(tmp_path / "mine.toml")
    try:
        ended = main(given)
    except SystemExit as stopped:
        ended = stopped.code
    said = capsys.readouterr()
    assert ended == code
    assert [part for part in parts if part not in said.err] == []
    assert "Traceback" not in said.err
    last = said.err.strip().splitlines()[-1].removeprefix("heatlas: ")
    assert last not in said.out, "it is not printed twice"


def test_a_group_in_a_column_of_another_name_is_suggested_as_an_option(tmp_path, people, capsys):
    write_bids(tmp_path, people)
    table = tmp_path / "participants.tsv"
    table.write_text(table.read_text().replace("diagnosis", "Dx").replace("CN", "Control").replace("\tAD", "\tPatient"))
    assert main(["check", str(tmp_path)]) == 65
    assert "Did you mean --contrast Dx=Control,Patient?" in one_line(capsys.readouterr().err)
    assert main(["check", str(tmp_path), "--contrast", "Dx=Control,Patient"]) == 0


def test_the_help_lists_all_presets_and_sorts_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"named settings: {', '.join(preset_names())}" in said
    places = [
        said.index(part) for part in (" --out ", "who takes part:", " --target ", "privacy:", "computing:", " --seed ")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("kept", [0.5, 0.98])
@pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
def test_an_image_that_was_cut_short_is_found_by_check(tmp_path, people, capsys, suffix, kept):
    write_bids(tmp_path, people)
    whole = tmp_path / "sub-03" / "anat" / "sub-03_T1w.nii.gz"
    values = np.random.default_rng(1).integers(0, 999, (40, 40, 40), dtype=np.int16)
    whole.unlink()
    broken = whole.with_name(f"sub-03_T1w{suffix}")
    nib.save(nib.Nifti1Image(values, np.diag([2, 2, 2, 1])), broken)
    broken.write_bytes(broken.read_bytes()[: int(kept * broken.stat().st_size)])
    assert main(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "24 scans found of 24 participants; 23 kept of 23 participants" in said
    assert "dropped 1: truncated file (sub-03_T1w)" in said


def test_output_folder_of_something_else(tmp_path, people, capsys):
    write_bids(tmp_path / "in", people)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.docx").write_text("mine")
    assert main(["run", str(tmp_path / "in"), str(tmp_path / "out")]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_command_of_another_distribution_is_listed_below_the_one_it_names(monkeypatch):
    class Judge(commands.Report):
        """Judge."""

        name = "judge"

    for after, place in (("check", 2), ("figures", -1), ("nothing of this name", -1)):
        added = (commands.AddedCommand(Judge, after),)
        monkeypatch.setattr(commands, "plugged_in", lambda group, kind, taken, added=added: added)
        names = [record.name for record in commands.all_commands.__wrapped__()]
        assert names[place] == "judge"
        assert len(names) == len(commands.COMMANDS) + 1


def test_help_names_every_command():
    text = build_parser().format_help()
    for name in ("demo", "check", "run", "explain", "report"):
        assert name in text


def one_line(said: str) -> str:
    """What was said, which must be one line of ours."""
    assert said.startswith("heatlas: ")
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("command", ["demo", "run", "report", "explain"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "nan", "", "99999999999"])
def test_a_number_of_processes_that_makes_no_sense(command, value, capsys):
    rest = {"run": ["in", "out"], "explain": ["out", "--method", "lrp"]}.get(command, ["out"])
    with pytest.raises(SystemExit, match="2"):
        main([command, *rest, "--n-procs", value])
    assert "argument --n-procs: " in capsys.readouterr().err


@pytest.mark.parametrize("number", ["EACCES", "EROFS", "EISDIR", "ENOTDIR", "ENAMETOOLONG", "ELOOP", "ENOENT", "EIO"])
def test_a_path_that_fails_anywhere_is_named(monkeypatch, capsys, number):
    def fail(_arguments):
        code = getattr(errno, number)
        raise OSError(code, os.strerror(code), "/out/group/x.tsv")

    monkeypatch.setitem(sys.modules, "heatlas.workflows.check", SimpleNamespace(check_command=fail))
    assert main(["check", "in"]) == 2
    said = one_line(capsys.readouterr().err)
    assert said.startswith(f"heatlas: /out/group/x.tsv: {os.strerror(getattr(errno, number))}. ")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.ENOSPC, "full", "/out/x"), 75, "no space left"),
        (OSError(errno.EDQUOT, "full", "/out/x"), 75, "no space left"),
        (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/out']"), 2, "set TMPDIR"),
    ],
)
def test_a_full_disk_and_a_machine_without_a_temporary_folder_are_no_defect(monkeypatch, capsys, error, code, said):
    def fail(_arguments):
        raise error

    monkeypatch.setitem(sys.modules, "heatlas.workflows.check", SimpleNamespace(check_command=fail))
    assert main(["check", "in"]) == code
    assert said in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("command", [["report", "out"], ["run", "in", "out"], ["explain", "out", "--method", "lrp"]])
def test_a_limit_on_the_size_of_files_is_named_before_any_work(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        code = main(command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "larger than 0 bytes here (ulimit -f); raise the limit" in one_line(capsys.readouterr().err)


def test_a_file_that_grows_over_the_limit_is_no_defect(tmp_path, monkeypatch, capsys):
    def write(_arguments):
        (tmp_path / "large").write_bytes(b"x" * 2**22)

    monkeypatch.setitem(sys.modules, "heatlas.workflows.check", SimpleNamespace(check_command=write))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, before[1]))
    try:
        code = main(["check", "in"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 75
    assert "larger than 2,097,152 bytes here (ulimit -f); raise the limit and run" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("command", [["report", "{}"], ["run", "in", "{}"], ["check", "{}"]])
def test_a_folder_whose_name_is_no_text_is_refused(tmp_path, capsys, command):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    Path(name).mkdir()
    with pytest.raises(SystemExit) as ended:
        main([name if word == "{}" else word for word in command])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert "its name is not text in UTF-8; rename the folder" in said[-1]


@pytest.fixture
def begun(tmp_path, people):
    """A run that has only begun, of a data set beside it."""
    write_bids(tmp_path / "in", people)
    layout = prepare_run_folder(tmp_path / "out", RunInput(tmp_path / "in", "default"), Config())
    for path in (layout.root / "scans.tsv", layout.root / "splits.tsv"):
        path.touch()
    return layout


WORK = {
    "run": lambda layout: ["run", str(layout.root.parent / "in"), str(layout.root)],
    "report": lambda layout: ["report", str(layout.root)],
    "explain": lambda layout: ["explain", str(layout.root), "--method", "lrp"],
}


@pytest.mark.parametrize("command", WORK)
def test_an_output_that_cannot_be_written_to_is_named(begun, command, capsys, monkeypatch):
    for check in ("adni.require_settings", "command_line.require_study"):  # nobody may not read atlas and packages
        monkeypatch.setattr(f"heatlas.workflows.{check}", lambda *_, **__: None)
    "".encode("utf-8-sig")  # loads the codec, which nobody may not read either
    with nobody(begun.root):
        assert main(WORK[command](begun)) == 2
    assert one_line(capsys.readouterr().err) == f"heatlas: {begun.root}: cannot write there (Permission denied).\n"


@pytest.mark.parametrize("command", WORK)
def test_a_second_program_in_a_run_folder_is_refused(begun, command, capsys):
    with run_lock(begun.lock):
        assert main(WORK[command](begun)) == 75
    assert f"{begun.root}: process {os.getpid()} works there" in one_line(capsys.readouterr().err)


def test_a_second_demo_in_a_folder_is_refused(tmp_path, capsys):
    with run_lock(RunLayout(tmp_path / "demo").lock):
        assert main(["demo", str(tmp_path / "demo")]) == 75
    assert "works there" in one_line(capsys.readouterr().err)


LONG = "n" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["check", LONG], ["check", "in", "--out", LONG], ["check", "in", "--config", LONG], ["report", LONG],
        ["check", "in", "--manifest", LONG], ["check", "in", "--anonymise", LONG], ["run", LONG, "out"],
        ["run", "in", LONG], ["run", "in", f"{LONG}/out"], ["run", "in", "out2", "--executor", f"{LONG}.py"],
        ["explain", LONG, "--method", "lrp"], ["demo", LONG], ["compare", LONG, "out", "--to", "tables"],
        ["compare", "out", "out3", "--to", LONG], ["manifest", "export", "in", f"{LONG}.tsv"],
        ["manifest", "export", LONG, "x.tsv"], ["manifest", "import", LONG, "in"], ["run", "in/" * 2000, "out"],
    ],
    ids=lambda words: " ".join(word[:9] for word in words),
)  # fmt: skip
def test_a_name_that_is_too_long(begun, words, capsys, monkeypatch):
    monkeypatch.chdir(begun.root.parent)
    assert main(words) in (2, 65)
    one_line(capsys.readouterr().err)


LOOPS = {
    "run": ["run", "IN", "LOOP"], "run from": ["run", "LOOP", "OUT"], "check": ["check", "IN", "--out", "LOOP"],
    "demo": ["demo", "LOOP"], "report": ["report", "LOOP"], "explain": ["explain", "LOOP", "--method", "lrp"],
    "compare": ["compare", "LOOP", "OUT", "--to", "OUT"], "compare to": ["compare", "OUT", "OUT", "--to", "LOOP"],
    "config": ["run", "IN", "OUT", "--config", "LOOP"],
}  # fmt: skip


@pytest.mark.parametrize("words", LOOPS.values(), ids=LOOPS)
def test_links_in_a_circle_are_named(tmp_path, words, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    paths = {"LOOP": loop / "below", "IN": tmp_path, "OUT": tmp_path / "out"}
    with pytest.raises(SystemExit) as ended:
        main([str(paths.get(word, word)) for word in words])
    assert ended.value.code == 2
    assert f"'{loop / 'below'}': its symbolic links form a loop" in capsys.readouterr().err


def test_a_demo_goes_into_no_folder_of_other_things(tmp_path, capsys):
    (tmp_path / "thesis.doc").touch()
    assert main(["demo", str(tmp_path)]) == 2
    assert "is not empty and not an earlier demo" in one_line(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.doc"]


def test_the_report_of_a_demo_is_made_again_with_the_marker(tmp_path, monkeypatch):
    done = []

    def stage(name, code):
        monkeypatch.setattr(
            f"heatlas.workflows.adni.{name}", lambda *given, **_: done.append((name, given[-1])) or code
        )

    asked: list[object] = []
    monkeypatch.setattr(
        "heatlas.workflows.adni.write_demo_cohort",
        lambda *given, longitudinal, **_: asked.append((given[2], longitudinal)),
    )
    for name, code in (("run_pipeline", 0), ("evaluate_command", 1), ("report_command", 0)):
        stage(name, code)
    assert main(["demo", str(tmp_path), "--marker"]) == 1
    assert main(["demo", str(tmp_path / "longitudinal"), "--longitudinal", "--stop-after", "cohort"]) == 0
    assert asked == [(30, False), (40, True)]
    done.pop()
    assert [name for name, _ in done] == ["run_pipeline", "evaluate_command", "report_command"]
    assert [given.out for _, given in done[1:]] == [tmp_path / "run"] * 2
    assert done[1][1].parts == ("marker",)


def test_a_report_of_an_unfinished_run_says_so_where_it_was_asked_for(tmp_path, people, capsys):
    write_bids(tmp_path / "in", people)
    out = str(tmp_path / "out")
    assert main(["run", str(tmp_path / "in"), out, "--stop-after", "cohort"]) == 0
    capsys.readouterr()
    assert main(["report", out, "--n-procs", "1"]) == 0
    assert "The run is not finished: there are no results of registration, training" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("run",), "heatlas run INPUT OUT [options]"),
        (("compare",), "heatlas compare OUT [OUT ...] --to FOLDER [options]"),
        (("explain",), "heatlas explain OUT --method NAME [NAME ...] [options]"),
        (("manifest", "export"), "heatlas manifest export INPUT FILE [options]"),
    ],
)
def test_usage_has_positional_arguments_before_options(words, usage, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(words)
    assert f"usage: {usage}\n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        build_parser().parse_args([*words, "--help"])
    assert f"usage: {usage}\n" in capsys.readouterr().out


def test_the_page_of_commands_is_made_from_the_command_line():
    page = Path(__file__).parents[2] / "docs" / "commands.md"
    assert page.read_text(encoding="utf-8") == commands_page(), REMEDY
    for part in (
        "## `heatlas manifest import FILE INPUT`\n\nFind the images of a manifest in an input;",
        "| `--start-at auto\\|scan\\|brain\\|template` | what images are: recognised individually",
        "| `OUT ...` | run folders, two or more; only read |",
        "| `--quick` | one set of networks",
    ):
        assert part in commands_page()


ROOT = Path(__file__).parents[2]
PARSER = build_parser()
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def commands_of(page: Path) -> list[list[str]]:
    """Words of the commands in a page's examples."""
    lines = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.strip().startswith("heatlas ")]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_examples_of_the_documentation_are_valid_commands(page: Path):
    for words in commands_of(page):
        assert PARSER.parse_args(words).command == words[0]


def test_examples_are_found():
    found = [words for page in (ROOT / "README.md", ROOT / "docs" / "evaluation.md") for words in commands_of(page)]
    assert len(found) > 12
    assert ["run", "BIDS", "OUT", "--target", "age"] in found


def test_numbers_of_methods_in_the_documentation_are_those_of_the_program():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    said = [n for page in pages for n in re.findall(r"(\d+) attribution methods", page.read_text(encoding="utf-8"))]
    assert set(said) == {str(len(METHODS))}


def toml_of(page: Path) -> list[str]:
    return re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


EXAMPLES = [
    (page.stem, text) for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] for text in toml_of(page)
]


@pytest.mark.parametrize("text", [text for _, text in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_settings_in_the_documentation_are_valid(text: str, tmp_path: Path):
    file = tmp_path / "example.toml"
    file.write_text(text, encoding="utf-8")
    load_config("default", file)


def test_the_version_is_that_of_the_installed_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"heatlas {metadata.version('heatlas')}\n"


# Ctrl-C and termination end in one line and the right exit code, whenever they come and however often.

STARTING = """
import os, signal
from heatlas.workflows import interrupts
class Main:
    def main(begin):
        os.kill(os.getpid(), signal.{name})
        print("not stopped")
import sys
sys.modules["heatlas.workflows.command_line"] = Main
sys.exit(interrupts.start())
"""
WORKING = """
import argparse, os, signal, sys, time
from heatlas.workflows import command_line, interrupts
class Home:
    def check_command(arguments):
        try:
            os.kill(os.getpid(), signal.{name})
            time.sleep(5)
        finally:
            time.sleep({pause})
            os.kill(os.getpid(), signal.{name})
            print("cleaned up")
sys.modules["heatlas.workflows.check"] = Home
sys.argv = ["heatlas", "check", "x"]
sys.exit(interrupts.start())
"""
ENDING = """
import os, signal, sys
from heatlas.workflows import interrupts
class Main:
    def main(begin):
        return 3
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.{name}):
        kill(process, number)
sys.modules["heatlas.workflows.command_line"] = Main
sys.late = Late()  # goes when Python has taken its signal handlers away
sys.exit(interrupts.start())
"""
ENDS = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated from outside")}


def run(code: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    def before() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=before)


@pytest.mark.sample(2)
@pytest.mark.parametrize("ignored", [False, True], ids=["", "by a background job"])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(
    ("code", "said", "then"),
    [(STARTING, "", "run the same command again"), (WORKING, "cleaned up\n", "the same command starts anew"),
     (WORKING.replace("check", "run").replace('"x"', '"x", "y"').replace("workflows.run", "workflows.adni"),
      "cleaned up\n", "run the same command again to continue")],
    ids=["starting", "working", "working on what is kept"],
)  # fmt: skip
def test_one_line_and_the_exit_code(code, said, then, name, ignored):
    ended = run(code.format(name=name, pause=0), ignored)
    number, words = ENDS[name]
    assert (ended.returncode, ended.stdout) == (number, said)
    assert ended.stderr == f"heatlas: {words}; {then}.\n"


def test_who_asks_again_does_not_wait_for_the_cleaning_up():
    ended = run(WORKING.format(name="SIGINT", pause=2.1))
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "heatlas: interrupted; run the same command again.\n"


@pytest.mark.parametrize("name", ENDS)
def test_a_signal_after_the_work_does_not_change_the_exit_code(name):
    ended = run(ENDING.format(name=name))
    assert (ended.returncode, ended.stderr) == (3, "")


# The commands as functions: what they are given is checked before anything is written.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heatlas.run("scans", None), "out = None: must be a path, as text or Path"),
        (lambda: heatlas.run(3, "out"), "input = 3: must be a path"),
        (lambda: heatlas.run("scans", "out", preset=None), "preset = None: must be the name of a preset"),
        (lambda: heatlas.run("scans", "out", seed="x"), "seed = 'x': must be a whole number"),
        (lambda: heatlas.run("scans", "out", settings=["a"]), r"settings = \['a'\]: must be settings by name"),
        (lambda: heatlas.run("scans", "out", settings={"a": 1}), "a must be a section"),
        (
            lambda: heatlas.run("scans", "out", settings={"training": {"ensemble": 2}}, config="a.toml"),
            "settings and config: both say what differs",
        ),
        (lambda: heatlas.apply("run", None, "out"), "new = None: must be a path"),
        (lambda: heatlas.evaluate(""), "out = '': must be a path"),
        (lambda: heatlas.evaluate("out", method="lrp"), "there is no option method. Did you mean methods?"),
        (
            lambda: heatlas.run("scans", "out", n_procs=0),
            "n_procs = 0: cannot be used .'0' is not a whole number from 1",
        ),
        (lambda: heatlas.run("scans", "out", side_by_side=True), "there is no option side_by_side"),
        (lambda: heatlas.run("scans", "out", stop_after="end"), "stop_after = 'end': must be one of cohort, "),
        (lambda: heatlas.apply("run", "scans", "out", new_people="no"), "new_people = 'no': must be True or False"),
        (lambda: heatlas.export("run", [1]), r"folder = \[1\]: must be a path"),
    ],
)
def test_arguments_that_are_none_are_refused_before_anything_is_written(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        call()
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("value", [None, 3, 1.5, True, "", b"a", [], [None], {"a": 1}, {1: 2}, object(), float("nan")])
def test_every_argument_judges_every_value_without_an_error_of_its_own(value):
    for name, (holds, must) in ARGUMENTS.items():
        assert holds(value) in (True, False), name
        assert must


@pytest.mark.parametrize(
    ("words", "record", "values"),
    [
        (["run", "in", "out", "--contrast", "cdr=0,>=0.5", "--n-procs", "3", "--resolution", "2", "--follow-links"],
         Run,
         {"input": "in", "out": Path("out"), "contrast": "cdr=0,>=0.5", "n_procs": 3, "resolution": 2.0,
          "follow_links": True, "backbone": None}),
        (["evaluate", "out", "--methods", "lrp", "--methods", "occlusion", "--draws", "9", "--n-procs", "1"], Evaluate,
         {"out": "out", "methods": ("lrp", "occlusion"), "draws": 9, "plant": False, "n_procs": "1"}),
        (["apply", "run", "new", "out", "--participant-label", "01", "--n-procs", "1"], Apply,
         {"run": "run", "input": "new", "out": "out", "participant_label": "01", "n_procs": 1}),
    ],
)  # fmt: skip
def test_library_and_command_line_fill_the_same_record(words, record, values):
    assert filled(record, values) == read_command(words)


def test_settings_of_the_library_are_those_of_a_file(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text(
        "[training]\nensemble = 4\n[training.augmentation]\nnoise_probability = 0.2\n"
        '[attribution.lrp]\nbatch_norm = "fold"\n'
    )
    given = {
        "training": {"ensemble": 4, "augmentation": {"noise_probability": 0.2}},
        "attribution": {"settings": ["lrp:batch_norm=fold"]},
    }
    by_name, by_file = (settings_of(Run(input=Path(), out=Path(), config=config, seed=7)) for config in (given, file))
    assert by_name == by_file
    assert (by_name.seed, by_name.training.ensemble, by_name.training.augmentation.noise_probability) == (7, 4, 0.2)
