"""``heatlas claims OUT --train``: further trainings of a run's recipe, and verdicts over people and trainings."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from heatlas.pipeline.cohort.people.splits import Split, make_split
from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.evaluation.claims.of_run import CLAIMS_TABLE, OF_PREDICTED, answers_of
from heatlas.pipeline.evaluation.claims.relevance import PREDICTED
from heatlas.pipeline.explaining.on_demand import EXPLAINED_BILATERAL_TABLE
from heatlas.pipeline.models.families.founding_family import FoundingConfig
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.config.settings import (
    AttributionConfig,
    CohortConfig,
    Config,
    ObjectiveConfig,
    RegistrationConfig,
    TrainingConfig,
)
from heatlas.pipeline.run.documents import read_json
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout, RunLayout
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import FAILURES_TABLE
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.pipeline.training.stage import train_folds
from heatlas.reports.questions.trust import CLAIMS
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.claims import require_trainable, trained_with
from heatlas.workflows.command_line import main
from heatlas.workflows.stages import aggregate, explain
from tests.attribution.outside_contrast import write_scans

CONFIG = Config(
    seed=5,
    cohort=CohortConfig(folds=2, validation_fraction=0.4),
    registration=RegistrationConfig(resolution_mm=4.0, seed=5),
    model=FoundingConfig(channels=(2, 3), pools=(3, 4), hidden_units=4, dropout=0.0),
    training=TrainingConfig(device="cpu", max_epochs=1, min_epochs=1, patience=1),
    attribution=AttributionConfig(methods=("lrp",), betas=(0.0, 1.0), keep_maps="all"),
)
PEOPLE = tuple(Scan(f"sub-{n:02d}", None, f"I{n}", f"{n}.nii", label=("CN", "AD")[n % 2]) for n in range(12))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    folder = tmp_path_factory.mktemp("claims")
    layout = prepare_run_folder(folder / "run", RunInput(folder / "input", "default"), CONFIG)
    write_scans(layout, PEOPLE)
    table = ScanTable(PEOPLE)
    table.write(layout)
    FAILURES_TABLE.write(layout.failures, [])
    split = make_split(table, CONFIG.cohort, CONFIG.seed)
    split.write(layout)
    with ThreadPoolExecutor(1) as executor:
        work = Work(layout, folder / "input", CONFIG, PEOPLE, split, executor, DigestCache(layout.digests))
        assert all(one.ok for one in (*train_folds(work, PEOPLE), *explain(work).outcomes, *aggregate(work).outcomes))
    return layout


def ask(layout: RunLayout, *options: str) -> str:
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setattr("heatlas.workflows.claims.open_executor", lambda *_: ThreadPoolExecutor(1))
        assert main(["claims", str(layout.root), *options]) == 0
    return said.getvalue()


def contents(layout: RunLayout) -> dict[str, str]:
    """Digests of all files of the run itself."""
    ours = [path for path in layout.root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    names = {path: path.relative_to(layout.root).as_posix() for path in ours}
    kept = {name: path for path, name in names.items() if not name.startswith(("claims/", "evaluation/"))}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in kept.items()}


def area_within_folds(layout: RunLayout) -> float:
    """Pairs of a patient and a control of one fold in which the patient's map has more, in loops."""
    rows = PREDICTIONS_TABLE.read(layout, ["scan_id", "fold", "target"]).set_index("scan_id")
    sums = RELEVANCE_BILATERAL_TABLE.read(layout, ["scan_id", "map", "sum"])
    rows["total"] = sums[sums["map"] == "lrpB000"].groupby("scan_id")["sum"].sum()
    won = []
    for _, one in rows.groupby("fold"):
        for ill in one.loc[one["target"] == 1, "total"]:
            won += [float(ill > well) + 0.5 * float(ill == well) for well in one.loc[one["target"] == 0, "total"]]
    return float(np.mean(won))


def test_claims_are_judged_over_the_trainings_of_the_run_and_of_further_seeds(run) -> None:
    before = contents(run)
    alone = ask(run)
    assert "Trains" not in alone
    first = CLAIMS_TABLE.read(run).set_index("claim").loc["L4"]
    assert (first["n_trainings"], first["n_networks"]) == (1, 2)
    assert first["estimate"] == pytest.approx(area_within_folds(run))
    said = ask(run, "--train", "1")
    receipts = [
        *run.receipt("training", "any").parent.glob("*.json"),
        *run.receipt("attribution", "any").parent.glob("*.json"),
    ]
    seconds = sum(read_json(path, "")["seconds"] for path in receipts)
    assert len(receipts) == 2 + len(PEOPLE)
    assert f"Trains 1 further set of networks, with seed 6, and explains by them: about {seconds:.0f} s" in said
    assert said.index("L4: Regions") < said.index("Trains 1") < said.index("L4 ")
    further = RunLayout(run.root / "claims" / "seed-6")
    row = CLAIMS_TABLE.read(run).set_index("claim").loc["L4"]
    assert (row["n_trainings"], row["n_networks"], row["n_participants"]) == (2, 4, len(PEOPLE))
    each = [area_within_folds(one) for one in (run, further)]
    assert row["estimate"] == pytest.approx(np.mean(each))
    assert each[0] != each[1]
    assert {fold.test for fold in Split.read(run).folds} != {fold.test for fold in Split.read(further).folds}
    assert contents(run) == before, "the run is only read"
    record = read_run(run)
    answer = CLAIMS.answered(record)
    assert answer is not None
    assert f"{len(PEOPLE)} people, one scan each, and 4 networks of 2 trainings" in answer.grounds
    made = {path: path.stat().st_mtime_ns for path in further.root.rglob("*.safetensors")}
    again = ask(run, "--train", "1")
    assert {path: path.stat().st_mtime_ns for path in further.root.rglob("*.safetensors")} == made, (
        "nothing is repeated"
    )
    assert again.splitlines()[-1] == said.splitlines()[-1]
    table = PREDICTIONS_TABLE.path(further)
    table.write_text(table.read_text().replace("0.", "0.1", 1))
    assert "made from claims/seed-6/group/predictions.tsv" in read_run(run).unreadable["claims"]


@pytest.mark.parametrize(
    ("config", "further", "why"),
    [
        (CONFIG, 0, "--train 0: give 1 or more"),
        (replace(CONFIG, training=TrainingConfig(networks_of="OUT")), 1, "were trained elsewhere"),
        (replace(CONFIG, training=TrainingConfig(from_run="OUT")), 1, "build on others"),
        (replace(CONFIG, objective=ObjectiveConfig(kind="distilled", teacher="OUT")), 1, "build on others"),
    ],
)
def test_a_recipe_that_another_seed_cannot_repeat_is_refused(config, further, why) -> None:
    with pytest.raises(UsageError, match=why):
        require_trainable(further, config)


def test_registered_scans_are_shared_and_not_written_to(run) -> None:
    further = RunLayout(run.root / "claims" / "seed-6")
    for scan in PEOPLE:
        ours, theirs = (one.scan(scan.participant_id, None, 4.0).t1w for one in (run, further))
        assert ours.samefile(theirs) or ours.read_bytes() == theirs.read_bytes()


def test_networks_of_the_run_are_as_its_recipe_makes_them(run, tmp_path: Path) -> None:
    """The same seed as that of the run gives its networks: nothing of the recipe is lost on the way.

    A run that was asked for guided backpropagation of the predicted class has it of further trainings.
    """
    table = ExplanationLayout(run.root).bilateral(OF_PREDICTED)
    table.parent.mkdir(exist_ok=True)
    table.touch()
    with ThreadPoolExecutor(1) as executor:
        again = trained_with(CONFIG.seed, run, RunInput(tmp_path, "default"), CONFIG, executor)
    for fold in Split.read(run).folds:
        assert run.fold(fold.index).weights.read_bytes() == again.fold(fold.index).weights.read_bytes()
    assert RELEVANCE_BILATERAL_TABLE.path(run).read_bytes() == RELEVANCE_BILATERAL_TABLE.path(again).read_bytes()
    found = EXPLAINED_BILATERAL_TABLE.read(ExplanationLayout(again.root).bilateral(OF_PREDICTED))
    assert set(found["scan_id"]) == {scan.scan_id for scan in PEOPLE}
    assert set(found["target"]) == {"CN", "AD"} & set(PREDICTIONS_TABLE.read(again)["predicted"])
    assert answers_of(again, CONFIG).relevance.maps[PREDICTED].shape[:2] == (1, len(PEOPLE))
