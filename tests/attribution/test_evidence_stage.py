"""Evidence maps in a run: who the reference is, what is written of it, and when a scan is explained again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outside_contrast import ATLAS, BOX, CONFIG, SPEC, OutsideRun, make_run

from heatlas.pipeline.attribution.gradient.paths import ExpectedGradients
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.cohort.people.splits import Fold, Split, few_people
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.cohort.work import Work
from heatlas.pipeline.explaining.controls import controls_of
from heatlas.pipeline.explaining.stage import EVIDENCE_TABLE, explain_applied, explain_scans
from heatlas.pipeline.models.inputs import read_network_volume
from heatlas.pipeline.models.storage import load_model
from heatlas.pipeline.regions.stage import aggregate_relevance
from heatlas.pipeline.run.config.settings import AttributionConfig, CohortConfig, Config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.scan_files import map_names
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.digests import DigestCache
from heatlas.pipeline.run.work.jobs import Outcome

MAP = "expectedGradients"
EVIDENCE = replace(CONFIG, attribution=AttributionConfig(methods=("lrp", "expected-gradients"), betas=(0.0,)))
SCANS = (
    Scan("sub-1", None, "I1", "a.nii", label="AD", sex="F", age=70.0, site="9"),
    Scan("sub-2", "ses-M000", "I2", "b.nii", label="CN", sex="M", age=71.0, site="9"),
    Scan("sub-3", None, "I3", "c.nii", label="CN", sex="F", age=80.0, site="8"),
    Scan("sub-4", None, "I4", "d.nii", label="AD"),
    Scan("sub-2", "ses-M024", "I5", "e.nii", label="CN", sex="M", age=73.0),
)
SPLIT = Split((Fold(0, ("sub-2", "sub-3"), (), ("sub-1", "sub-4")), Fold(1, ("sub-1", "sub-3"), (), ("sub-2",))))
PREDICTIONS = pd.DataFrame({"scan_id": ["I1", "I2", "I4", "I5"], "fold": [0, 1, 0, 1], "target": [1, 0, 1, 0]}).assign(
    probability=0.6, outcome=["TP", "TN", "FN", "FP"]
)


@pytest.fixture
def run(tmp_path: Path) -> OutsideRun:
    made = make_run(tmp_path / "run")
    for fold in SPLIT.folds:  # the networks say whom they have seen
        path = made.layout.fold(fold.index).description
        described = json.loads(path.read_text())
        described["participants"] = {"train": fold.train, "validation": fold.validation, "test": fold.test}
        path.write_text(json.dumps(described))
    return made


def explain(run: OutsideRun, config: Config = EVIDENCE, scans: Any = SCANS, split: Split = SPLIT) -> list[Outcome]:
    with ThreadPoolExecutor(1) as executor:
        digests = DigestCache(run.layout.digests)
        work = Work(run.layout, run.layout.root, config, tuple(scans), split, executor, digests)
        return explain_scans(work, scans, PREDICTIONS, ATLAS)


def volume_of(run: OutsideRun, scan: Scan) -> torch.Tensor:
    files = run.layout.scan(scan.participant_id, scan.session_id, 4.0)
    return torch.from_numpy(read_network_volume(files, SPEC))[None, None]


def test_maps_accounts_and_sidecars_are_those_of_the_controls_of_the_fold(run: OutsideRun) -> None:
    outcomes = explain(run)
    assert [outcome.status for outcome in outcomes] == ["done"] * 4
    model = load_model(run.layout.fold(0)).model
    taken = controls_of(SCANS, SPLIT, EVIDENCE).of(0, SCANS[0])
    assert {scan.scan_id for scan in taken} == {"I2", "I3"}
    reference = Reference(torch.cat([volume_of(run, one) for one in taken]), ("a", "b"))
    expected = attribute(model, volume_of(run, SCANS[0]), 1, ExpectedGradients(reference), start="evidence")
    table = read_table(run.layout.group / "evidence.tsv", list(EVIDENCE_TABLE.meanings)).set_index("scan_id")
    assert list(table.index) == ["I1", "I2", "I4", "I5"]
    assert set(table["map"]) == {MAP}
    assert list(table["n_reference"]) == [2, 1, 2, 1]
    with torch.no_grad():
        logits = model(torch.cat([volume_of(run, SCANS[0]), reference.volumes])).double()
    own, *others = (logits[:, 1] - logits[:, 0]).tolist()
    row = table.loc["I1"]
    assert row["evidence"] == pytest.approx(own, abs=1e-5)
    assert row["reference_evidence"] == pytest.approx(np.mean(others), abs=1e-5)
    assert row["map_sum"] == pytest.approx(float(expected.values.sum()), rel=1e-5)
    error = row["map_sum"] - (row["evidence"] - row["reference_evidence"])
    assert row["completeness_error"] == pytest.approx(error, abs=1e-9)
    distance = np.mean([abs(own - other) for other in others])
    assert row["completeness_share"] == pytest.approx(abs(error) / distance, rel=1e-3, abs=1e-9)
    plain = ExpectedGradients(reference, control_variate=False, tolerance=np.inf)
    drawn = float(attribute(model, volume_of(run, SCANS[0]), 1, plain, start="evidence").values.sum())
    assert row["sampling_error"] == pytest.approx(drawn - (own - np.mean(others)), rel=1e-2, abs=1e-6)
    assert row["sampling_share"] == pytest.approx(abs(row["sampling_error"]) / distance, rel=1e-3)
    described = json.loads(
        run.layout.scan("sub-1", None, 4.0).relevance_map(MAP).with_suffix("").with_suffix(".json").read_text()
    )
    assert described["ReferenceParticipants"] == ["sub-2", "sub-3"]
    assert described["StartValueKind"] == "evidence"
    assert described["ReferenceValue"] == pytest.approx(row["reference_evidence"])


def test_a_method_that_draws_no_points_has_no_sampling_error(run: OutsideRun) -> None:
    exact = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, methods=("deeplift",)))
    assert [outcome.status for outcome in explain(run, exact)] == ["done"] * 4
    table = read_table(run.layout.group / "evidence.tsv")
    assert table[["sampling_error", "sampling_share"]].isna().all(axis=None)
    assert (table["completeness_share"] < 1e-3).all()  # float32 on evidence near 0; 1.2e-4 on some processors


def test_a_map_that_is_refused_is_a_failure_with_the_remedy_and_others_go_on(run: OutsideRun) -> None:
    def asked(tolerance: float) -> Config:
        settings = ("integrated-gradients-from-mean:steps=1", f"integrated-gradients-from-mean:tolerance={tolerance}")
        attribution = replace(EVIDENCE.attribution, methods=("integrated-gradients-from-mean",), settings=settings)
        return replace(EVIDENCE, attribution=attribution)

    assert [outcome.status for outcome in explain(run, asked(1e9))] == ["done"] * 4
    made = read_table(run.layout.group / "evidence.tsv")
    made = made.set_index("scan_id")
    shares = (made["completeness_error"] / made["map_sum"]).abs()  # one point: the variation is the size of the sum
    kept, refused = shares.idxmin(), shares.idxmax()
    outcomes = explain(run, asked((shares[kept] * shares[refused]) ** 0.5))
    status = {outcome.job.arguments[0].scan.scan_id: outcome for outcome in outcomes}
    assert status[kept].ok
    assert not status[refused].ok
    failures = read_table(run.layout.failures)
    row = failures[failures["unit"] == status[refused].job.unit].iloc[0]
    assert "raise steps (now 1)" in row["message"]
    assert kept in set(read_table(run.layout.group / "evidence.tsv")["scan_id"])


def test_evidence_of_regions_adds_up_and_is_of_no_other_map(run: OutsideRun) -> None:
    explain(run)
    with ThreadPoolExecutor(1) as executor:
        scans = [scan for scan in SCANS if scan.scan_id in set(PREDICTIONS["scan_id"])]
        names, digests = map_names(EVIDENCE.attribution), DigestCache(run.layout.digests)
        work = Work(run.layout, run.layout.root, EVIDENCE, SCANS, SPLIT, executor, digests)
        aggregate_relevance(work, scans, PREDICTIONS, names, ATLAS.grid)
    account = read_table(run.layout.group / "evidence.tsv").set_index("scan_id")["map_sum"]
    regions, groups = (
        read_table(run.layout.group / "relevance.tsv"),
        read_table(run.layout.group / "relevance_bilateral.tsv"),
    )
    for table in (regions, groups):
        assert table.loc[table["map"] != MAP, "evidence"].isna().all()
        own = table[table["map"] == MAP]
        assert own["evidence"].notna().all()
        np.testing.assert_array_equal(own["evidence"], own["sum"])
    total = regions[regions["map"] == MAP].groupby("scan_id")["evidence"].sum()
    np.testing.assert_allclose(total, account[total.index], atol=1e-6)
    assert groups.loc[groups["map"] == MAP, "gain"].isna().all()
    assert groups.loc[groups["map"] != MAP, "gain"].notna().any()


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("a scan of the reference", {"I1": True, "I2": False, "I4": True, "I5": False}),
        ("the size of the reference", {"I1": True, "I2": False, "I4": True, "I5": False}),
        ("nothing", {"I1": False, "I2": False, "I4": False, "I5": False}),
    ],
)
def test_scans_are_explained_again_when_their_reference_changes(
    run: OutsideRun, changed: str, again: dict[str, bool]
) -> None:
    config = EVIDENCE
    explain(run)
    if changed == "a scan of the reference":  # sub-2 is a reference in fold 0 only; its own map is of its first scan
        files = run.layout.scan("sub-3", None, 4.0)
        files.t1w.write_bytes(files.t1w.read_bytes() + b"\0" * 8)
        again = {**again, "I2": True, "I5": True}  # sub-3 is a reference in both folds
    if changed == "the size of the reference":
        config = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, reference_size=1))
    outcomes = explain(run, config)
    found = {outcome.job.arguments[0].scan.scan_id: outcome.status == "done" for outcome in outcomes}
    assert found == again


def test_methods_without_a_reference_do_not_depend_on_controls(run: OutsideRun) -> None:
    plain = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, methods=("lrp",)))
    assert [outcome.status for outcome in explain(run, plain)] == ["done"] * 4
    other = replace(plain, attribution=replace(plain.attribution, reference_size=1, reference_match=("age",)))
    assert [outcome.status for outcome in explain(run, other)] == ["unchanged"] * 4
    assert read_table(run.layout.group / "evidence.tsv").empty


def test_a_fold_without_a_control_is_refused_before_any_scan(run: OutsideRun) -> None:
    split = Split((Fold(0, ("sub-2", "sub-3"), (), ("sub-1", "sub-4")), Fold(1, ("sub-1",), ("sub-3",), ("sub-2",))))
    with pytest.raises(BadInputError, match=r"fold 1: its training part has no registered scan of a control \(CN\)"):
        explain(run, split=split)
    assert not list(run.layout.root.rglob("*_relevance.*"))
    assert not (run.layout.group / "evidence.tsv").exists()


def test_a_reference_that_the_network_was_not_trained_with_is_refused(run: OutsideRun) -> None:
    """As after another split was put in place of the one that the networks know."""
    split = Split((SPLIT.folds[0], Fold(1, ("sub-1", "sub-3", "sub-5"), (), ("sub-2",))))
    outcomes = explain(run, scans=(*SCANS, Scan("sub-5", None, "I6", "f.nii", label="CN")), split=split)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    assert {outcome.job.arguments[0].scan.scan_id for outcome in failed} == {"I2", "I5"}
    assert all("was not trained with sub-5" in str(outcome) for outcome in failed)


def test_scans_outside_the_contrast_are_compared_with_the_controls_of_each_network(run: OutsideRun) -> None:
    stranger = Scan("sub-5", None, "I6", "f.nii", diagnosis="MCI")
    run.layout.group.mkdir(exist_ok=True)
    (run.layout.group / "predictions_applied.tsv").write_text("scan_id\tnetworks\nI6\t0;1\n")
    with ThreadPoolExecutor(1) as executor:
        digests = DigestCache(run.layout.digests)
        work = Work(run.layout, run.layout.root, EVIDENCE, SCANS, SPLIT, executor, digests)
        outcomes = explain_applied(work, (stranger,), SCANS, ATLAS)
    assert [outcome.status for outcome in outcomes] == ["done"]
    row = read_table(run.layout.group / "evidence_applied.tsv").iloc[0]
    assert row["n_reference"] == 2  # sub-2 and sub-3; the second network has sub-3 only
    values = []
    for fold in (0, 1):
        with torch.no_grad():
            logits = load_model(run.layout.fold(fold)).model(volume_of(run, stranger)).double()[0]
        values.append(float(logits[1] - logits[0]))
    assert row["evidence"] == pytest.approx(np.mean(values), abs=1e-5)
    with ThreadPoolExecutor(1) as executor:
        explain_applied(replace(work, executor=executor), (), SCANS, ATLAS)
    assert not (run.layout.group / "evidence_applied.tsv").exists()


@pytest.mark.parametrize(
    ("match", "order"),
    [
        ((), None),
        (("age",), ["sub-2", "sub-3", "sub-7", "sub-6"]),
        (("sex",), ["sub-3", "sub-6"]),
        (("sex", "age"), ["sub-3", "sub-6", "sub-2", "sub-7"]),
        (("site", "sex"), None),
    ],
)
def test_matched_controls_come_first(match: tuple[str, ...], order: list[str] | None) -> None:
    people = (
        *SCANS,
        Scan("sub-6", None, "I7", "g.nii", label="CN", sex="F"),
        Scan("sub-7", None, "I8", "h.nii", label="CN", sex="M", age=100.0, site="9"),
    )
    split = Split((Fold(0, ("sub-2", "sub-3", "sub-6", "sub-7"), (), ("sub-1", "sub-4")),))
    config = replace(EVIDENCE, attribution=replace(EVIDENCE.attribution, reference_match=match))
    found = [scan.participant_id for scan in controls_of(people, split, config).of(0, SCANS[0])]
    assert sorted(found) == ["sub-2", "sub-3", "sub-6", "sub-7"]
    if match == ("site", "sex"):  # one differs in the site, one in the sex, one in neither is not there
        assert found[-1] == "sub-6" or found.index("sub-6") > min(found.index("sub-2"), found.index("sub-7"))
    if order is not None:
        assert found[: len(order)] == order or (match == ("sex",) and set(found[:2]) == set(order))


def test_who_is_no_control() -> None:
    scans = (
        Scan("sub-1", "ses-1", "A", "a", label="CN"),
        Scan("sub-1", "ses-2", "B", "b", label="AD"),  # converted
        Scan("sub-ADNI002S0295", None, "C", "c", label="CN"),
        Scan("sub-ADNI131S0295", None, "D", "d", label="AD"),  # the same person under another site
        Scan("sub-3", "ses-2", "E", "e", label="CN"),
        Scan("sub-3", "ses-1", "F", "f", label="CN"),
        Scan("sub-4", None, "G", "g", label=None),
        Scan("sub-5", None, "H", "h", label="CN"),
    )
    train = ("sub-1", "sub-3", "sub-4", "sub-ADNI002S0295", "sub-ADNI131S0295")
    controls = controls_of(scans, Split((Fold(0, train, ("sub-5",), ("sub-9",)),)), EVIDENCE)
    assert [scan.scan_id for scan in controls.of(0, scans[7])] == ["F"]


def test_controls_are_among_the_share_of_people_who_trained_the_network() -> None:
    scans = [Scan(f"sub-{n}", None, f"I{n}", "x.nii", label="CN" if n % 2 else "AD") for n in range(20)]
    split = Split((Fold(0, tuple(scan.participant_id for scan in scans[:16]), (), ("sub-16", "sub-17")),))
    few = replace(EVIDENCE, training=replace(EVIDENCE.training, participants=0.25))
    labels = {scan.participant_id: scan.label for scan in scans}
    learned = few_people(split.folds[0], labels, 0.25, few.seed).train
    found = [scan.participant_id for scan in controls_of(scans, split, few).of(0, scans[16])]
    assert sorted(found) == [name for name in learned if labels[name] == "CN"]
    assert len(found) == 2
    assert len(controls_of(scans, split, EVIDENCE).of(0, scans[16])) == 8


def test_a_number_is_compared_with_all_people_of_the_training_part() -> None:
    config = replace(EVIDENCE, cohort=CohortConfig(target="age"))
    scans = [replace(scan, label="70.5") for scan in SCANS]
    found = controls_of(scans, SPLIT, config).of(1, scans[1])
    assert {scan.participant_id for scan in found} == {"sub-1", "sub-3"}
    with pytest.raises(BadInputError, match="someone with age"):
        controls_of([], SPLIT, config).of(1, scans[1])


@given(st.integers(0, 999), st.integers(2, 20), st.data())
@settings(max_examples=40, deadline=None)
def test_references_are_drawn_from_the_training_part_and_do_not_depend_on_others(
    seed: int, people: int, data: Any
) -> None:
    scans = [Scan(f"sub-{n}", None, f"I{n}", "x.nii", label="CN") for n in range(people)]
    parts = data.draw(st.lists(st.sampled_from(("train", "validation", "test")), min_size=people, max_size=people))
    of = {part: tuple(s.participant_id for s, own in zip(scans, parts, strict=True) if own == part)
          for part in ("train", "validation", "test")}  # fmt: skip
    split = Split((Fold(0, of["train"], of["validation"], of["test"]),))
    config = replace(EVIDENCE, seed=seed, attribution=replace(EVIDENCE.attribution, reference_size=5))
    found = controls_of(scans, split, config).by_fold[0]
    assert {scan.participant_id for scan in found} == set(of["train"])
    fewer = [scan for scan in scans if scan.scan_id != "I0"]
    assert controls_of(fewer[::-1], split, config).by_fold[0] == tuple(s for s in found if s.scan_id != "I0")


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"reference_size": 0}, "attribution.reference_size must be 1 or more"),
        ({"reference_match": ("age", "age")}, "attribution.reference_match must name each value once"),
        ({"reference_match": ("mmse",)}, "attribution.reference_match .*must be a list of any of 'age', 'sex', 'site'"),
    ],
)
def test_settings_that_are_refused(given_: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Config(attribution=AttributionConfig(**given_))


def test_the_box_of_the_toys_has_unequal_sides() -> None:
    assert len(set(BOX.shape)) == 3
