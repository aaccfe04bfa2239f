"""``heatlas evaluate --parts grids`` on a whole run of seconds, with scans that are recognised."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.studies.grids.directions import DIRECTIONS_TABLE, GRIDS_TABLE
from heatlas.studies.grids.stage import AGREEMENT_TABLE, GRID_TABLES, INVARIANCE_TABLE
from heatlas.workflows.command_line import main
from tests.declared_tables import require_as_declared
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci

METHODS = "deeplift,gradient,grad-cam,region-swap"
ASKED = ["--parts", "grids", "--methods", METHODS, "--n-procs", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("grids")
    write_template_cohort(folder / "input", participants=18)
    config = write_config(folder / "config.toml")
    command = ["run", str(folder / "input"), str(folder / "out"), "--config", str(config), "--n-procs", "1"]
    assert main([*command, "--stop-after", "training"]) == 0
    for fold in (0, 1):
        predict(folder / "out", fold, {"CN": "0.1", "AD": "0.9"})  # grids need scans that are recognised
    return folder / "out"


def predict(run: Path, fold: int, probability: dict[str, str]) -> None:
    """Let the network of a fold have said something else."""
    path = run / "models" / f"fold-{fold}" / "predictions.tsv"
    table = pd.read_csv(path, sep="\t", dtype=str)
    table["probability"] = table["label"].map(probability)
    table.to_csv(path, sep="\t", index=False)


def copied(run: Path, folder: Path) -> Path:
    copy = folder / "out"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("evaluation"))
    (copy / "config.toml").write_text((run / "config.toml").read_text().replace("../input", str(run.parent / "input")))
    return copy


@pytest.fixture(scope="module")
def evaluated(run) -> EvaluationLayout:
    assert main(["evaluate", str(run), *ASKED]) == 0
    return EvaluationLayout(run)


def bytes_of(layout: EvaluationLayout) -> dict[str, bytes]:
    files = [*layout.evaluation.glob("*.tsv"), *layout.evaluation_figures.glob("*")]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_tables_are_as_declared(evaluated) -> None:
    for one in GRID_TABLES:
        require_as_declared(evaluated, one)


@pytest.mark.slow
def test_every_setting_method_and_stage_has_a_row(evaluated) -> None:
    rows = GRIDS_TABLE.read(evaluated)
    made = rows[rows["n_grids"] > 0].set_index(["setting", "kind"]).sort_index()
    assert set(made.index) == {("GridPG", "needle"), ("GridPG", "pair"), ("DiFull", "corner")}
    assert made["share"].between(0, 1).all()
    for setting, kind, chance in (("GridPG", "needle", 0.25), ("GridPG", "pair", 0.5), ("DiFull", "corner", 0.25)):
        own = made.loc[(setting, kind)]
        assert (own["chance"] == chance).all()
        stages = own.groupby("method")["stage"].agg(set)
        assert stages.to_dict() == {"deeplift": {0, 1, 2}, "gradient": {0, 1, 2}, "grad-cam": {1, 2}}
    assert (made["confidence"] > 0.5).all()
    assert (made["n_participants"] <= made["n_grids"]).all()


@pytest.mark.slow
def test_locality_is_checked_on_these_networks_and_said(evaluated) -> None:
    rows = GRIDS_TABLE.read(evaluated)
    difull = rows[(rows["setting"] == "DiFull") & (rows["n_grids"] > 0)]
    assert (difull["local"] == "yes").all()
    follow = difull["method"].isin(["deeplift", "gradient"])
    assert (difull.loc[follow & (difull["n_undefined"] == 0), "share"] == 1).all()
    dipart = rows[rows["setting"] == "DiPart"]
    assert (dipart["n_grids"] == 0).all()
    assert dipart.loc[dipart["method"] == "gradient", "note"].str.contains("Flatten").all()
    assert rows.loc[rows["method"] == "region-swap", "note"].str.contains("atlas regions").all()
    one_channel = rows[(rows["method"] == "grad-cam") & (rows["stage"] == 0) & (rows["setting"] != "DiPart")]
    assert one_channel["note"].str.contains("one channel").all()


@pytest.mark.slow
def test_directions_agreement_and_invariance_have_answers(evaluated) -> None:
    claims = DIRECTIONS_TABLE.read(evaluated).set_index("claim")
    assert claims.loc["Gradient marks only what the head sees", "holds"] == "yes"
    assert pd.isna(claims.loc["Occlusion is better than RISE", "holds"])
    agreement = AGREEMENT_TABLE.read(evaluated)
    assert agreement["spearman"].dropna().between(-1, 1).all()
    own = agreement[(agreement["kind"] == "pair")]
    names = GRIDS_TABLE.read(evaluated).query("kind == 'pair' and n_grids > 0")
    assert len(own) == len(names) * (len(names) - 1) / 2
    invariance = INVARIANCE_TABLE.read(evaluated).set_index("method")
    assert (invariance["logit_difference"] < 1e-9).all()
    assert bool(invariance.loc["gradient", "invariant"])


@pytest.mark.slow
def test_number_kinds_and_layout_of_grids_are_settings(run, tmp_path, capsys) -> None:
    copy, file = copied(run, tmp_path), tmp_path / "grids.toml"
    asked = ["evaluate", str(copy), *ASKED, "--quick", "--config", str(file)]
    file.write_text('[evaluation.grids]\nkinds = ["needle"]\nper_class = 6\ntop = 1.0\nlayout = [3, 1, 1]\n')
    assert main(asked) == 0
    rows = GRIDS_TABLE.read(EvaluationLayout(copy))
    assert set(rows["kind"]) == {"needle"}
    assert set(rows["cells"]) == {3}
    made = rows[rows["n_grids"] > 0]
    assert made["chance"].to_numpy() == pytest.approx(1 / 3)
    assert set(made["n_grids"]) == {2 * 2 * 3}  # folds, classes, half of six
    file.write_text('[evaluation.grids]\nkinds = ["pair"]\n')
    assert main(asked) == 2
    assert "makes no pairs" in capsys.readouterr().err
    file.write_text("[evaluation.grids]\nlayout = [2, 1, 1]\n")
    assert main(asked) == 2
    assert "3 to 64 cells" in capsys.readouterr().err


@pytest.mark.slow
def test_figures_are_drawn_and_a_second_call_writes_the_same_bytes(evaluated, capsys) -> None:
    before = bytes_of(evaluated)
    assert {"aggregated_GridPG.svg", "aggregated_GridPG.png", "aggregated_DiFull.svg"} <= set(before)
    receipts = {path: path.stat().st_mtime_ns for path in (evaluated.evaluation / "receipts").rglob("*.json")}
    assert main(["evaluate", str(evaluated.root), *ASKED]) == 0
    assert bytes_of(evaluated) == before
    assert {path: path.stat().st_mtime_ns for path in receipts} == receipts
    assert "Grids: claims of the literature that hold:" in capsys.readouterr().out


@pytest.mark.parametrize("everyone_is", ["CN", "AD"])
def test_networks_that_never_recognise_a_class_are_refused_with_the_remedy(run, tmp_path, capsys, everyone_is) -> None:
    copy = copied(run, tmp_path)
    for fold in (0, 1):
        predict(copy, fold, dict.fromkeys(("CN", "AD"), "0.2" if everyone_is == "CN" else "0.8"))
    assert main(["evaluate", str(copy), *ASKED]) == 65
    said = capsys.readouterr().err
    assert f"no scan of {'AD' if everyone_is == 'CN' else 'CN'} is recognised" in said
    assert "better network" in said


def test_a_fold_with_too_few_confident_scans_has_a_row_and_the_others_go_on(run, tmp_path, capsys) -> None:
    copy = copied(run, tmp_path)
    predict(copy, 1, {"CN": "0.2", "AD": "0.2"})
    assert main(["evaluate", str(copy), *ASKED[:2], "--quick", "--methods", "lrp", "occlusion", "--n-procs", "1"]) == 0
    layout = EvaluationLayout(copy)
    rows = GRIDS_TABLE.read(layout)
    missing = rows[rows["method"] == "all"]
    assert set(missing["setting"]) == {"GridPG", "DiFull", "DiPart"}
    assert missing["note"].str.startswith("fold 1: no scan of AD is recognised").all()
    assert "fold 1: no scan of AD is recognised" in capsys.readouterr().out
    made = rows[rows["n_grids"] > 0]
    asked = made.groupby("kind")["method"].agg(set)
    assert asked["needle"] - asked["corner"] == {"lrp composite gamma=0.01", "lrp composite gamma=0.25"}
    assert asked["corner"] <= asked["needle"]
    slow = rows[(rows["method"] == "occlusion") & (rows["kind"] == "needle")].set_index("stage")
    assert slow["n_grids"].gt(0).to_dict() == {0: False, 2: True}
    assert "without --quick" in slow.loc[0, "note"]
    assert set(made["stage"]) == {0, 2}
    z_plus = INVARIANCE_TABLE.read(layout).set_index("method").loc["lrp beta=0"]
    assert not bool(z_plus["invariant"])
    assert z_plus["share_plain"] == 0
    assert z_plus["share_cancelling"] > 0.5


def test_a_run_without_predictions_is_told_what_to_do(run, tmp_path, capsys) -> None:
    copy = copied(run, tmp_path)
    for path in copy.glob("models/fold-*/predictions.tsv"):
        path.unlink()
    assert main(["evaluate", str(copy), *ASKED]) == 65
    assert "predictions.tsv" in capsys.readouterr().err
