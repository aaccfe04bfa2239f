"""``heatlas evaluate`` on whole runs of seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.attribution.reference.deeplift import DeepLift
from heatlas.pipeline.evaluation.bench.table import EVALUATION_TABLE, SHIFT_CURVE_TABLE
from heatlas.pipeline.evaluation.bench.verdicts import VERDICTS_TABLE
from heatlas.pipeline.evaluation.claims.of_run import CLAIMS_TABLE
from heatlas.pipeline.evaluation.parts import BENCH_TABLES
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout
from heatlas.pipeline.run.tables import read_table
from heatlas.studies.before_after.measures import BEFORE_AFTER_TABLE
from heatlas.studies.before_after.stage import OBJECTIVE_WEIGHTS_TABLE
from heatlas.studies.consensus.agreement import NETWORKS_TABLE
from heatlas.studies.grids.directions import DIRECTIONS_TABLE, GRIDS_TABLE
from heatlas.studies.grids.stage import AGREEMENT_TABLE, GRID_TABLES, INVARIANCE_TABLE
from heatlas.studies.marker.marker_groups import MARKER_TABLE
from heatlas.studies.representations.table import REPRESENTATIONS_TABLE
from heatlas.studies.retraining.stage import RETRAINING_TABLE
from heatlas.workflows.command_line import main
from tests.declared_tables import require_as_declared
from tests.workflows.template_cohort import write_config, write_template_cohort

pytestmark = pytest.mark.ci


# ``heatlas evaluate`` on a whole run of seconds.

METHODS = ["deeplift", "gradient"]
PARTS = ["nulls,faithfulness", "interactions", "retrain,consensus"]
ASKED = ["--quick", "--plant", "--parts", *PARTS, "--draws", "1", "--n-procs", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    write_template_cohort(folder / "input", participants=18)
    config = write_config(folder / "config.toml", width=2)  # convolutions are half of the time
    command = ["run", str(folder / "input"), str(folder / "out"), "--config", str(config), "--n-procs", "1"]
    assert main([*command, "--stop-after", "training"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def evaluated(run) -> EvaluationLayout:
    before = files_of(run)
    assert main(["evaluate", str(run), *ASKED, "--methods", ",".join(METHODS)]) == 0
    after = files_of(run)
    assert {name: value for name, value in after.items() if not name.startswith(("evaluation/", "logs/digests"))} == {
        name: value for name, value in before.items() if not name.startswith("logs/digests")
    }
    return EvaluationLayout(run)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tables_are_as_declared(evaluated) -> None:
    for one in BENCH_TABLES:
        if one not in (
            *GRID_TABLES,
            MARKER_TABLE,
            BEFORE_AFTER_TABLE,
            OBJECTIVE_WEIGHTS_TABLE,
            REPRESENTATIONS_TABLE,
            SHIFT_CURVE_TABLE,
            CLAIMS_TABLE,
        ):  # of parts that are not asked here
            require_as_declared(evaluated, one)


def test_every_map_has_a_row_by_every_network_and_a_verdict(evaluated) -> None:
    rows = EVALUATION_TABLE.read(evaluated)
    whole = rows[rows["severity"] == "all"]
    networks = whole.groupby(["cohort", "map"])["network"].agg(set)
    for cohort in ("run", "planted"):
        for method in METHODS:
            found = networks[cohort, method]
            assert {"real", "shuffled-1", "untrained", "cascade-1"} <= found
        assert networks[cohort, "scanDifference"] == {"none"}
    said = VERDICTS_TABLE.read(evaluated)
    assert len(said) == 2 * (len(METHODS) + 5)
    assert set(said.loc[said["map"] == "scanDifference", "tells_labels"]) == {"no"}
    assert set(rows.loc[rows["cohort"] == "planted", "severity"]) == {"all", "1", "2", "3"}


def test_evidence_adds_up_and_the_image_alone_follows_no_network(evaluated) -> None:
    rows = EVALUATION_TABLE.read(evaluated).query("network == 'real' and severity == 'all'").set_index("map")
    assert (rows.loc["deeplift", "completeness_error"] < 1e-3).all()
    assert rows.loc["deeplift", "insertion_regions"].notna().all()


def test_maps_are_asked_again_of_changed_scans_and_scored_against_the_truth(evaluated) -> None:
    rows = EVALUATION_TABLE.read(evaluated).query("severity == 'all'").set_index(["cohort", "network", "map"])
    for name in METHODS:
        for cohort in ("run", "planted"):
            row = rows.loc[(cohort, "real", name)]
            assert 0 <= row["adcc"] <= 1
            assert row["max_sensitivity"] > 0
        assert (
            rows.loc[("planted", "real", name), ["pointing", "iou", "f1", "le", "om", "ba", "sp", "ep"]]
            .between(0, 1)
            .all()
        )
        assert np.isfinite(rows.loc[("planted", "real", name), "sm"])
        assert np.isnan(rows.loc[("run", "real", name), "iou"])  # of which no truth is known
    even = rows.loc[("planted", "none", "uniform")]
    assert np.isnan(even["max_sensitivity"])  # no network makes it
    assert even["pointing"] == pytest.approx(even["energy"], rel=0.5)
    known = rows.loc["planted"].loc["real", ["dose_response", "dose_response_low", "dose_response_high"]].dropna()
    assert (known["dose_response_low"] <= known["dose_response"]).all()


def test_a_second_call_does_nothing_and_writes_the_same_bytes(evaluated, capsys) -> None:
    def tables() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in evaluated.evaluation.glob("*.tsv")}

    before = tables()
    receipts = {path: path.stat().st_mtime_ns for path in (evaluated.evaluation / "receipts").rglob("*.json")}
    assert main(["evaluate", str(evaluated.root), *ASKED, "--methods", *METHODS]) == 0
    assert tables() == before
    assert {path: path.stat().st_mtime_ns for path in receipts} == receipts
    said = capsys.readouterr().out
    assert "On the scans of the run:" in said and "On the controls with planted loss:" in said  # noqa: PT018
    assert "tells real from shuffled labels" in said


def test_retrained_networks_and_further_ones_have_their_rows(evaluated) -> None:
    removed = RETRAINING_TABLE.read(evaluated).set_index("map")
    assert set(removed.index) == {"nothing", *METHODS, "scanDifference", "random"}
    rest = removed.drop(index="nothing")
    assert rest["volume_share"].eq(0.05).all()
    assert rest["removed_share"].between(0.025, 0.05).all()
    assert removed.loc[METHODS, "p_auc"].isin([0.5, 1]).all()  # one draw
    networks = NETWORKS_TABLE.read(evaluated)
    assert set(networks["kind"]) == {"own", "seed", "epochs"}
    assert networks.groupby("networks")["balanced_accuracy"].nunique().eq(1).all()  # whatever the map
    rows = EVALUATION_TABLE.read(evaluated).query("cohort == 'run' and network == 'real' and severity == 'all'")
    own = networks[networks["networks"] == "run"].set_index("map")
    for method in METHODS:  # the run's own networks are judged alike by both parts
        real = rows.set_index("map").loc[method]
        assert own.loc[method, "first_groups"] == real["first_groups"]
        assert own.loc[method, "balanced_accuracy"] == real["balanced_accuracy"]


def test_parts_that_train_networks_leave_verdicts_as_they_were(evaluated, capsys) -> None:
    before = {path.name: path.read_bytes() for path in evaluated.evaluation.glob("*.tsv")}
    command = ["evaluate", str(evaluated.root), "--quick", "--draws", "1", "--n-procs", "1", "--methods", *METHODS]
    for more in ([], ["--plant"]):
        assert main([*command, "--parts", "retrain", *more]) == 0
        assert {path.name: path.read_bytes() for path in evaluated.evaluation.glob("*.tsv")} == before
    said = capsys.readouterr().out
    assert "without the 5 % of the volume that deeplift ranks first" in said
    assert "tells real from shuffled labels" not in said


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--families", "resnet10"], "--families: only the consensus asks other families"),
        (["--parts", "consensus", "--families", "resnet11"], "--families resnet11: "),
        (["--draws", "5"], "--draws: only remove and retrain"),
        (["--parts", "retrain", "--draws", "0"], "--draws 0: give 1 or more"),
        (["--methods", "no-such-method"], "--methods no-such-method: unknown"),
        (["--methods", "cam"], "cam is not defined for networks of the family founding"),
        (["--parts", "nothing"], "--parts nothing: unknown. Known are nulls"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(run, capsys, extra, message) -> None:
    assert main(["evaluate", str(run), *extra]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys) -> None:
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "not a Heatlas run" in capsys.readouterr().err


def moved(run: Path, to: Path, *ignored: str) -> Path:
    """A copy of the run that finds its input."""
    shutil.copytree(run, to, ignore=shutil.ignore_patterns("evaluation", *ignored))
    (to / "config.toml").write_text((run / "config.toml").read_text().replace("../input", str(run.parent / "input")))
    (to / "logs" / "settings.toml").unlink()
    return to


@pytest.mark.parametrize("damage", [b"", b"no image"], ids=["empty", "not an image"])
def test_an_unreadable_scan_is_a_failed_unit_and_others_go_on(run, tmp_path, capsys, damage) -> None:
    copy = moved(run, tmp_path / "out")
    scans = read_table(copy / "scans.tsv")
    patient = scans.loc[scans["diagnosis"] == "AD", "participant_id"].iloc[0]
    (image,) = (copy / patient).rglob("*desc-preproc_T1w.nii.gz")
    image.write_bytes(damage)
    asked = ["--quick", "--parts", "nulls", "--methods", "gradient", "--n-procs", "1"]
    assert main(["evaluate", str(copy), *asked]) == 1
    layout = EvaluationLayout(copy)
    failures = read_table(layout.failures)
    assert set(failures["stage"]) == {"training", "judging"}
    assert failures["message"].str.contains("not the file that registration wrote there").all()
    assert "2 networks failed" in capsys.readouterr().out.replace("2 of 2", "2")
    rows = EVALUATION_TABLE.read(layout).query("map == 'gradient'").set_index("network")
    assert rows.loc["real", "n_scans"] == scans["diagnosis"].isin(["AD", "CN"]).sum() - 1
    assert {"untrained", "cascade-1"} <= set(rows.index)
    assert VERDICTS_TABLE.read(layout).set_index("map").loc["gradient", "tells_labels"] == "not known"


def test_a_method_that_is_not_defined_is_refused_before_any_work(run, tmp_path, capsys, monkeypatch) -> None:
    def refuse(self, view) -> None:
        raise UsageError("layer x: not defined")

    monkeypatch.setattr(DeepLift, "require", refuse)
    copy = moved(run, tmp_path / "out")
    assert main(["evaluate", str(copy), "--plant", "--methods", "deeplift", "--n-procs", "1"]) == 2
    assert "layer x: not defined" in capsys.readouterr().err
    assert not list((copy / "evaluation").rglob("receipts/*/*"))


@pytest.mark.parametrize("missing", ["splits.tsv", "models"])
def test_a_run_without_networks_is_refused_with_the_remedy(run, tmp_path, capsys, missing) -> None:
    copy = moved(run, tmp_path / "out", missing)
    assert main(["evaluate", str(copy), "--n-procs", "1"]) == 65
    assert "heatlas run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_curve_of_shifts_is_a_table_on_the_page_and_goes_with_its_setting(run, tmp_path) -> None:
    copy = moved(run, tmp_path / "out")
    settings = tmp_path / "shifts.toml"
    settings.write_text("[evaluation]\nshifts = [2, 0, 3]\nscans = 1\n")
    asked = ["evaluate", str(copy), "--quick", "--parts", "faithfulness", "--methods", "gradient", "--n-procs", "1"]
    assert main([*asked, "--config", str(settings)]) == 0
    layout = EvaluationLayout(copy)
    require_as_declared(layout, SHIFT_CURVE_TABLE)
    table = SHIFT_CURVE_TABLE.read(layout).set_index("shift")
    assert table.index.tolist() == [0, 2, 3]
    assert set(table["cohort"]) == {"run"}
    assert table.loc[0, ["correlation", "cosine", "in_place", "lost"]].tolist() == pytest.approx([1, 1, 1, 0])
    assert table["lost"].is_monotonic_increasing
    some = table["n_participants"] > 0
    assert (table.loc[some, "correlation"] <= 1 + 1e-9).all()
    assert (table.loc[table["lost"] > 0.001, "note"].str.contains("leaves the volume")).all()
    assert table.loc[~some, "correlation"].isna().all()
    assert not (table["correlation_low"] > table["correlation"]).any()
    assert main(["report", str(copy)]) == 0
    page = "".join(path.read_text() for path in (*copy.glob("*.html"), *copy.glob("pages/*.html")))
    assert "Do maps move with a moved scan?" in page
    assert "by shift." in page
    assert main(asked) == 0
    assert not SHIFT_CURVE_TABLE.path(layout).exists()


# ``heatlas evaluate --parts grids`` on a whole run of seconds, with scans that are recognised.

GRIDS_METHODS = "deeplift,gradient,grad-cam,region-swap"
GRIDS_ASKED = ["--parts", "grids", "--methods", GRIDS_METHODS, "--n-procs", "1"]


@pytest.fixture(scope="module")
def grids_run(tmp_path_factory) -> Path:
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
def grids_evaluated(grids_run) -> EvaluationLayout:
    assert main(["evaluate", str(grids_run), *GRIDS_ASKED]) == 0
    return EvaluationLayout(grids_run)


def bytes_of(layout: EvaluationLayout) -> dict[str, bytes]:
    files = [*layout.evaluation.glob("*.tsv"), *layout.evaluation_figures.glob("*")]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.slow
def test_tables_are_as_declared_grids(grids_evaluated) -> None:
    for one in GRID_TABLES:
        require_as_declared(grids_evaluated, one)


@pytest.mark.slow
def test_every_setting_method_and_stage_has_a_row(grids_evaluated) -> None:
    rows = GRIDS_TABLE.read(grids_evaluated)
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
def test_locality_is_checked_on_these_networks_and_said(grids_evaluated) -> None:
    rows = GRIDS_TABLE.read(grids_evaluated)
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
def test_directions_agreement_and_invariance_have_answers(grids_evaluated) -> None:
    claims = DIRECTIONS_TABLE.read(grids_evaluated).set_index("claim")
    assert claims.loc["Gradient marks only what the head sees", "holds"] == "yes"
    assert pd.isna(claims.loc["Occlusion is better than RISE", "holds"])
    agreement = AGREEMENT_TABLE.read(grids_evaluated)
    assert agreement["spearman"].dropna().between(-1, 1).all()
    own = agreement[(agreement["kind"] == "pair")]
    names = GRIDS_TABLE.read(grids_evaluated).query("kind == 'pair' and n_grids > 0")
    assert len(own) == len(names) * (len(names) - 1) / 2
    invariance = INVARIANCE_TABLE.read(grids_evaluated).set_index("method")
    assert (invariance["logit_difference"] < 1e-9).all()
    assert bool(invariance.loc["gradient", "invariant"])


@pytest.mark.slow
def test_number_kinds_and_layout_of_grids_are_settings(grids_run, tmp_path, capsys) -> None:
    copy, file = copied(grids_run, tmp_path), tmp_path / "grids.toml"
    asked = ["evaluate", str(copy), *GRIDS_ASKED, "--quick", "--config", str(file)]
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
def test_figures_are_drawn_and_a_second_call_writes_the_same_bytes(grids_evaluated, capsys) -> None:
    before = bytes_of(grids_evaluated)
    assert {"aggregated_GridPG.svg", "aggregated_GridPG.png", "aggregated_DiFull.svg"} <= set(before)
    receipts = {path: path.stat().st_mtime_ns for path in (grids_evaluated.evaluation / "receipts").rglob("*.json")}
    assert main(["evaluate", str(grids_evaluated.root), *GRIDS_ASKED]) == 0
    assert bytes_of(grids_evaluated) == before
    assert {path: path.stat().st_mtime_ns for path in receipts} == receipts
    assert "Grids: claims of the literature that hold:" in capsys.readouterr().out


@pytest.mark.parametrize("everyone_is", ["CN", "AD"])
def test_networks_that_never_recognise_a_class_are_refused_with_the_remedy(
    grids_run, tmp_path, capsys, everyone_is
) -> None:
    copy = copied(grids_run, tmp_path)
    for fold in (0, 1):
        predict(copy, fold, dict.fromkeys(("CN", "AD"), "0.2" if everyone_is == "CN" else "0.8"))
    assert main(["evaluate", str(copy), *GRIDS_ASKED]) == 65
    said = capsys.readouterr().err
    assert f"no scan of {'AD' if everyone_is == 'CN' else 'CN'} is recognised" in said
    assert "better network" in said


def test_a_fold_with_too_few_confident_scans_has_a_row_and_the_others_go_on(grids_run, tmp_path, capsys) -> None:
    copy = copied(grids_run, tmp_path)
    predict(copy, 1, {"CN": "0.2", "AD": "0.2"})
    assert (
        main(["evaluate", str(copy), *GRIDS_ASKED[:2], "--quick", "--methods", "lrp", "occlusion", "--n-procs", "1"])
        == 0
    )
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


def test_a_run_without_predictions_is_told_what_to_do(grids_run, tmp_path, capsys) -> None:
    copy = copied(grids_run, tmp_path)
    for path in copy.glob("models/fold-*/predictions.tsv"):
        path.unlink()
    assert main(["evaluate", str(copy), *GRIDS_ASKED]) == 65
    assert "predictions.tsv" in capsys.readouterr().err
