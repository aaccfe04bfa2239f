"""``heatlas claims``: planted answers, verdicts beside a bootstrap in loops, what cannot be asked, and the section."""

from __future__ import annotations

import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from claim_records import RECORDS

from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.cohort.records import SCANS_TABLE, Scan, ScanTable
from heatlas.pipeline.evaluation.claims.of_run import CLAIMS_TABLE, answers_of, claims_table, planned
from heatlas.pipeline.evaluation.claims.records import OF_THE_LITERATURE, Ask, read_claims
from heatlas.pipeline.evaluation.claims.relevance import KNOWN_STATISTICS, NotAskedError
from heatlas.pipeline.evaluation.claims.rule import HOLDS, NOT, OPEN
from heatlas.pipeline.evaluation.scores.localisation import entropy, gini
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.layout.folder import RunInput, prepare_run_folder, read_run_config
from heatlas.pipeline.run.layout.run_layout import ExplanationLayout, RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.training.prediction import PREDICTIONS_TABLE
from heatlas.reports.questions.trust import CLAIMS
from heatlas.reports.read.run_record import read_run
from heatlas.workflows.command_line import main

CLAIMS_READ = read_claims(OF_THE_LITERATURE, KNOWN_STATISTICS)
REGIONS = ("Hippocampus", "Amygdala", "Parahippocampal gyrus", "Entorhinal area", "Transverse temporal gyrus")
REGIONS += ("Planum temporale", *(f"Region {place}" for place in range(10)))
MAPS = ("lrpB000", "lrpB025", "lrpB050", "lrpB075", "lrpB100", "gb")
EACH = 20  # people of a class


def made_run(folder: Path) -> RunLayout:
    """Totals of about 3 in patients and 1 in controls; one network, which is always right; a second visit of one."""
    (folder / "input").mkdir()
    config = load_config(overrides={"registration": {"resolution_mm": 4.0}})
    layout = prepare_run_folder(folder / "run", RunInput(folder / "input", "default"), config)
    random, people, sums = np.random.default_rng(0), [], []
    for place in range(2 * EACH + 1):
        person, ill = (0, 1) if place == 2 * EACH else (place, place % 2)
        who = f"sub-{person:02d}", f"ses-{place // EACH}", f"I{place}"
        label, logit, outcome = ("AD", 1.0, "TP") if ill else ("CN", -1.0, "TN")
        people.append([*who, 0, label, ill, -logit, logit, 0.5 + 0.4 * logit, label, outcome, "none"])
        shares = random.lognormal(0, 0.6) * (3 if ill else 1) * random.dirichlet(np.full(len(REGIONS), 5.0))
        sums += [[*who, name, group, 8, value] for name in MAPS for group, value in zip(REGIONS, shares, strict=True)]
    PREDICTIONS_TABLE.without("spread").write(layout, people)
    columns = ["participant_id", "session_id", "scan_id", "map", "group", "n_voxels", "sum"]
    empty = dict.fromkeys(("density", "reference_sum", "gain"), np.nan)
    RELEVANCE_BILATERAL_TABLE.without("evidence", "evidence_sd").write(
        layout, pd.DataFrame(sums, columns=columns).assign(**empty)
    )
    ScanTable(tuple(Scan(row[0], row[1], row[2], None) for row in people)).write(SCANS_TABLE.path(layout))
    return layout


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return made_run(tmp_path)


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> tuple[RunLayout, str]:
    """A run that was asked, and what the command printed."""
    layout, said = made_run(tmp_path_factory.mktemp("asked")), StringIO()
    with redirect_stdout(said):
        assert main(["claims", str(layout.root)]) == 0
    return layout, said.getvalue()


def by_claim(layout: RunLayout) -> dict[str, dict[str, object]]:
    rows = CLAIMS_TABLE.read(layout).drop_duplicates("claim")
    return {str(row["claim"]): row for row in rows.to_dict("records")}


def test_verdicts_are_those_of_a_bootstrap_in_loops(asked) -> None:
    """One network: the interval is that of people, drawn within classes."""
    run, _ = asked
    rows = read_table(RELEVANCE_BILATERAL_TABLE.path(run))
    totals = rows[rows["map"] == "lrpB000"].groupby("scan_id")["sum"].sum()
    first = read_table(PREDICTIONS_TABLE.path(run)).drop_duplicates("participant_id")
    ill, well = (totals[first.loc[first["target"] == one, "scan_id"]].to_numpy() for one in (1, 0))
    found, random, drawn = by_claim(run), np.random.default_rng(1), []
    for _ in range(2000):
        a, b = (random.choice(one, size=EACH - 1) for one in (ill, well))
        drawn.append(b.mean() / np.concatenate([a, b]).mean())
    share, row = well.mean() / np.concatenate([ill, well]).mean(), found["L17"]
    assert row["estimate"] == pytest.approx(share)
    half = (float(row["ci_high"]) - float(row["ci_low"])) / 2
    assert half == pytest.approx(2.02 * np.std(drawn), rel=0.1)  # t of 38 degrees of freedom; 1,000 and 2,000 draws
    assert row["points"] == pytest.approx(100 * (0.5 - share))
    assert row["verdict"] == (HOLDS if share + half < 0.5 else NOT if share - half > 0.5 else OPEN)
    area = np.mean(ill[:, None] > well)
    assert (found["L4"]["estimate"], found["L4"]["n_participants"]) == (pytest.approx(area), 40)
    assert (found["L4"]["n_networks"], found["L4"]["verdict"]) == (1, HOLDS)
    assert "maps start from the logit" in str(found["L4"]["note"])
    assert found["L14"]["estimate"] == 1


def test_what_cannot_be_asked_is_listed_with_the_reason_and_the_section_says_so(asked) -> None:
    run, said = asked
    found = by_claim(run)
    assert set(found) == {claim.id for claim in CLAIMS_READ}
    reasons = {name: str(row["note"]) for name, row in found.items() if row["verdict"] == "not asked"}
    assert "heatlas explain RUN --method guided-backpropagation --target predicted" in reasons["L5"]
    assert reasons["L6"] == "0 people are FP, and 5 are needed"
    assert "keep_maps" in reasons["L10"], "there are no brain masks"
    assert reasons["B8"].startswith("needs training: heatlas run")
    assert all(f"\n    {reason}\n" in f"{said}\n" for reason in reasons.values())
    assert said.index("L4: Regions have") < said.index("asked, about") < said.index("L4 holds: area of the total")
    record = read_run(run)
    asked = len(found) - len(reasons)
    answer = CLAIMS.answered(record)
    assert answer is not None
    assert answer.answer.startswith(f"Of {asked} claims that could be asked, ")
    shown = CLAIMS.build(SimpleNamespace(run=record, shows_people=True))["views"]
    assert len(shown[1].table.rows) == len(reasons)
    assert "L17" in shown[0].chart


def shown_claims(layout: RunLayout) -> tuple[list[str], list[str]]:
    """Claims on the page, and the sentences on why there are none."""
    record = read_run(layout)
    assert CLAIMS.applies_to(record)
    section = CLAIMS.build(SimpleNamespace(run=record, shows_people=True))
    assert bool(section["views"]) == record.has("claims") == (not section["undone"])
    assert CLAIMS.answered(record) is None or record.has("claims")
    return list(record.tables["claims"]["claim"].unique()) if record.has("claims") else [], section["undone"]


def test_claims_of_tables_that_have_changed_since_are_left_out_with_a_sentence(run, tmp_path) -> None:
    assert main(["claims", str(run.root)]) == 0
    path = RELEVANCE_BILATERAL_TABLE.path(run)
    before = path.read_bytes()
    path.write_bytes(before)  # made again, and the same
    assert len(shown_claims(run)[0]) == len(CLAIMS_READ)
    rows = read_table(path)
    write_table(path, rows.assign(sum=rows["sum"] * 2))
    names, (why,) = shown_claims(run)
    assert names == []
    assert why == (
        "evaluation/claims.tsv was made from group/relevance_bilateral.tsv, changed or gone since. Repeat the command "
        "that made it."
    )
    path.write_bytes(before)
    assert not shown_claims(run)[1]
    rows = read_table(PREDICTIONS_TABLE.path(run))
    write_table(ExplanationLayout(run.root).bilateral("guidedBackpropagationTargetPredicted"), rows[["scan_id"]])
    assert "made from explanations/desc-guidedBackpropagationTargetPredicted_bilateral.tsv" in shown_claims(run)[1][0]


def test_claims_of_a_file_keep_their_rules_and_do_not_name_its_folder(run, tmp_path) -> None:
    own = tmp_path / "own.toml"
    text = '[[claim]]\nid = "X1"\nsays = "x"\nasks = [{ of = "area, LRP", says = "above", bound = 0.6 }]\n'
    own.write_text(text, "utf-8")
    assert main(["claims", str(run.root), "--claims", str(own)]) == 0
    assert shown_claims(run) == (["X1"], [])
    assert by_claim(run)["X1"]["said_in"] == "own.toml"
    assert by_claim(run)["X1"]["rule"] == "above 0.6"
    receipts = [path.read_text("utf-8") for path in run.root.rglob("claims.json")]
    assert len(receipts) == 2  # and the data dictionary
    assert not [text for text in receipts if str(tmp_path) in text.replace(str(run.root), "")]


def test_sparsity_is_that_of_the_maps_in_the_brain(run) -> None:
    people = answers_of(run, read_run_config(run)).people.trainings[0]
    grid, files = configured_grid(people.config.registration), people.files[0]
    random = np.random.default_rng(0)
    brain = np.zeros(grid.shape, np.uint8)
    brain[20:24, 20:24, 20:24] = 1
    found = {files.relevance_map(name): random.normal(size=grid.shape).astype(np.float32) for name in MAPS[:5]}
    for path, values in {files.brain_mask: brain, **found}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(values, grid.affine), path)
    inside = found[files.relevance_map("lrpB100")][brain > 0].astype(float)
    assert people.sparsity_of(files)["Gini index at 1"] == pytest.approx(gini(inside))
    assert people.sparsity_of(files)["entropy at 1"] == pytest.approx(entropy(inside))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"positive": "old", "negative": "young"}, None),
        ({"target": "age"}, "this run predicts a number"),
        ({"classes": ["CN", "MCI", "AD"]}, "compare two classes"),
    ],
)
def test_a_run_of_another_task_is_told_why(run, change, why) -> None:
    text = run.config.read_text("utf-8")
    config = read_run_config(run)
    config = type(config)(**{**vars(config), "cohort": type(config.cohort)(**{**vars(config.cohort), **change})})
    if why:
        with pytest.raises(NotAskedError, match=why):
            answers_of(run, config)
        assert run.config.read_text("utf-8") == text
        return
    told = {claim.id: reason for claim, reason, _ in planned(CLAIMS_READ, answers_of(run, config))}
    assert told["L18"] == "it is about AD, and the maps of this run explain old"
    assert told["L4"] == told["L18"]
    assert told["L10"] != told["L18"]


@pytest.mark.parametrize("missing", ["predictions.tsv", "class"])
def test_a_run_without_truth_or_with_one_class_lists_every_claim(run, missing) -> None:
    if missing == "class":
        rows = read_table(PREDICTIONS_TABLE.path(run))
        write_table(PREDICTIONS_TABLE.path(run), rows[rows["target"] == 1])
    else:
        (run.group / missing).unlink()
    assert main(["claims", str(run.root)]) == 0
    found = by_claim(run)
    assert {row["verdict"] for row in found.values()} == {"not asked"}
    assert ("are of fewer" if missing == "class" else "no group/predictions.tsv") in str(found["L4"]["note"])


def test_a_damaged_table_is_named_in_one_line(run, capsys) -> None:
    path = RELEVANCE_BILATERAL_TABLE.path(run)
    path.write_text(path.read_text("utf-8").replace("\t8\t", "\t8x\t", 1), "utf-8")
    assert main(["claims", str(run.root)]) == 65
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith(f"heatlas: {path}: line 2, column n_voxels: '8x' is not a number")
    assert not CLAIMS_TABLE.path(run).exists()


def test_a_run_without_such_maps_is_told_why(run) -> None:
    rows = read_table(RELEVANCE_BILATERAL_TABLE.path(run))
    write_table(RELEVANCE_BILATERAL_TABLE.path(run), rows.assign(map="expectedGradients"))
    with pytest.raises(NotAskedError, match="no maps of LRP or guided backpropagation"):
        answers_of(run, read_run_config(run))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('of = "area, LPR", says = "above"', r"claim 1: no statistic 'area, LPR'. Did you mean area, LRP\?"),
        ('of = "area, LRP", says = "abov"', "claim 1: says 'abov': unknown. Did you mean above"),
        ('of = "area, LRP", says = "above", bond = 1', "claim 1: asks: bond: unknown. Did you mean bound"),
        ('of = "area, LRP", says = "above", bound = "x"', "claim 1: asks: bound = 'x' is of another type"),
        ('says = "above"', "claim 1: asks: of is missing"),
        ("", "claim 1: asks: of is missing"),
        ('of = "area, LRP less area, LRP less area, LRP", says = "above"', "compares 3 statistics; it may compare two"),
        ('of = "area, LRP", says = "above", ends = [1, 0]', r"ends = \[1, 0\] are not a floor and a ceiling"),
        ('of = "area, LRP", says = "above", scale = 100', "claim 1: asks: scale: unknown"),
        (
            'of = "area, LRP", says = "above" }]\n'
            '[[claim]]\nid = "X1"\nsays = "y"\nasks = [{ of = "area, LRP", says = "above"',
            "two claims have the id 'X1'",
        ),
        ('of = "', "cannot be read"),
    ],
)
def test_a_record_with_an_unknown_name_is_refused_in_one_line(run, tmp_path, capsys, text, said) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f'[[claim]]\nid = "X1"\nsays = "x"\nasks = [{{ {text} }}]\n', "utf-8")
    with pytest.raises(BadInputError, match=said):
        read_claims(own, KNOWN_STATISTICS)
    assert main(["claims", str(run.root), "--claims", str(own)]) == 65
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not CLAIMS_TABLE.path(run).exists()


def test_margins_are_above_0_where_a_claim_holds() -> None:
    within = Ask("x", says="within", bound=0.1, origin=0.5)
    assert within.margins(0.45, 0.58) == pytest.approx((0.02, 0.1))
    assert within.margins(0.62, 0.7) == pytest.approx((-0.1, -0.02))
    assert Ask("x", says="below", bound=1).margins(0.5, 2) == (-1, 0.5)


def test_claims_are_those_of_the_ledger() -> None:
    """The same words and rules; the ledger says `patients` of what was found there."""
    ledger = {
        claim["id"]: claim
        for path in RECORDS.glob("*.toml")
        for claim in tomllib.loads(path.read_text("utf-8")).get("claim", ())
    }
    for claim in CLAIMS_READ:
        if claim.id not in ("L5b", "L14"):
            assert claim.says == ledger[claim.id]["says"], claim.id
            asks = {ask["of"]: ask for here in ledger[claim.id].get("here", ()) for ask in here.get("asks", ())}
            for ask in claim.asks:
                if ask.of in asks and asks[ask.of].get("says"):
                    theirs = asks[ask.of]
                    assert (ask.says, ask.bound) == (theirs["says"], theirs.get("bound", 0)), claim.id


def test_a_table_of_claims_of_which_none_is_asked_is_whole() -> None:
    rows = claims_table(list(planned(CLAIMS_READ, "the reason")), "the reason")
    assert len(rows) == len(CLAIMS_READ)
    assert rows["p_holm"].isna().all()


@pytest.mark.parametrize("text", ['[[claims]]\nid = "X1"\n', "claim = 3\n"])
def test_a_file_without_claims_is_refused(tmp_path, text) -> None:
    (tmp_path / "own.toml").write_text(text, "utf-8")
    with pytest.raises(BadInputError, match=r"own\.toml: has no claim"):
        read_claims(tmp_path / "own.toml", KNOWN_STATISTICS)
