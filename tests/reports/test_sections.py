"""Sections of a report that a setting, a task or a table decides."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import EVIDENCE, PLANTED, WITH_EVIDENCE, RunPlan, make_run

from heatlas.atlases.spaces import template_grid, write_template_image
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.layout.folder import RunInput
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table, write_text
from heatlas.pipeline.statistics.associations.volume_association import UNITS, WITHIN
from heatlas.pipeline.statistics.images.voxelwise import VOXELWISE_TABLES
from heatlas.pipeline.training.objectives.records import kind_of
from heatlas.reports.content.relevance import differences
from heatlas.reports.content.relevance.differences import draw_differences, named
from heatlas.reports.content.relevance.regions import _evidence_table
from heatlas.reports.content.relevance.volume import build, draw_volume_scatter, participant_points, volume_estimate
from heatlas.reports.content.run import methods
from heatlas.reports.content.run.cohort import _demographics, _split
from heatlas.reports.content.run.methods import further_analyses
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import CHAPTERS, INDEX
from heatlas.reports.page.build import write_report
from heatlas.reports.page.sections import QUESTIONS, build_section, sections_of
from heatlas.reports.questions.clinical import follows_number
from heatlas.reports.questions.comparisons import PRIMARY
from heatlas.reports.questions.findings import ranking
from heatlas.reports.questions.trust import PLANTED_EFFECTS
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord, read_run
from heatlas.reports.words.numbers import fixed, p_value

# The report says first what was asked first; every table of tests is labelled; no g without its interval.


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    return make_run(tmp_path_factory.mktemp("primary") / "run", WITH_EVIDENCE)


@pytest.fixture(scope="module")
def record(run) -> RunRecord:
    return read_run(run)


def test_the_primary_outcome_is_printed_last_with_its_numbers(run, record):
    row = read_table(run.statistics("primary")).iloc[0]
    assert (row["map"], row["metric"]) == (EVIDENCE, "sum")
    answer = summarise(record).answers[-1]
    named = "artial correlation of evidence (Expected gradients) in the hippocampus with "
    held = "AD and CN together, adjusted for test fold, class, age, sex"
    assert answer.text.startswith("Named before any result: evidence in the hippocampus and ")
    assert answer.text.endswith("AD and CN together, with the class held constant.")
    assert answer.more.startswith(f"Primary outcome (named before any result: p{named}")
    assert f"{held})" in answer.more
    bounds = f"{fixed(row['ci_low'])} to {fixed(row['ci_high'])}"
    assert f"r\xa0=\xa0{fixed(row['r'])} (95 % interval {bounds})" in answer.more
    assert f"{p_value(row['p'])}, {row['n_participants']} participants" in answer.more
    assert f"Permutations exchange {row['exchanged']}." in answer.more
    tested, r = f"95 % interval {bounds}, {p_value(row['p'])}, n = {row['n_participants']}", f"r = {fixed(row['r'])}"
    shown = (r, tested) if row["p"] < 0.05 else ("No clear correlation", f"{r}; {tested}")
    assert (answer.figure, answer.figure_caption) == shown
    results = [name for chapter in CHAPTERS if chapter.file != INDEX for name in sections_of(chapter)]
    assert results[0] == "primary"
    assert "The primary outcome, named before any result, was the partial correlation of evi" in further_analyses(
        record
    )


@pytest.mark.parametrize(("p", "answer"), [(0.049, "A correlation."), (0.05, "No clear correlation.")])
def test_the_answer_is_that_of_its_p(record, p, answer):
    tables = {**record.tables, "primary": record.tables["primary"].assign(p=p)}
    found = PRIMARY.answered(RunRecord(record.layout, record.config, record.source, tables, {}, {}, {}, {}))
    assert found.answer == answer


def test_an_outcome_that_could_not_be_computed_says_why(record):
    blank = record.tables["primary"].assign(r=None, p=None, covariates=None, map=None, note="hippocampus: no value.")
    found = PRIMARY.answered(RunRecord(record.layout, record.config, record.source, {"primary": blank}, {}, {}, {}, {}))
    assert found.answer == "Not known."
    assert found.grounds.endswith("Hippocampus: no value.")


def test_a_report_does_not_begin_with_what_is_not_known(record):
    assert summarise(record).answers[0].question == "How good is the prediction?"
    blank = record.tables["primary"].assign(r=None, p=None, note="hippocampus/tiv: no scan has a value.")
    answers = summarise(replace(record, tables={**record.tables, "primary": blank})).answers
    assert answers[0].question == "How good is the prediction?"
    assert answers[-1].question == "The primary outcome"
    assert not any(one.text.startswith("Not known") for one in answers[:-1])


def test_an_outcome_that_another_measure_stands_in_for_says_so(record):
    note = "hippocampus/tiv: no scan has a value, so mmse takes its place"
    table = record.tables["primary"].assign(biomarker="mmse", note=note)
    found = PRIMARY.answered(replace(record, tables={**record.tables, "primary": table}))
    assert found.grounds.endswith("no scan has a value, so MMSE takes its place.")
    assert "in the hippocampus with MMSE" in found.grounds


def test_every_caption_of_tests_names_role_family_and_correction(run):
    material = Material.of(run)
    seen = set()
    for analysis in [question for question in QUESTIONS if question.views]:
        for shown in analysis.build(material)["views"]:
            if shown.table is not None:
                name = shown.file.rpartition("/")[2].removesuffix(".tsv")
                seen.add(name)
                assert TABLES[name].tests in shown.table.caption
    assert {"primary", "associations", "group_comparisons", "main_effects"} <= seen


def test_no_view_shows_g_without_its_interval():
    for analysis in [question for question in QUESTIONS if question.views]:
        for view in analysis.views:
            for name in [one for one in view.columns if one.endswith("hedges_g")]:
                assert {f"{name}_low", f"{name}_high"} <= set(view.columns), view.caption
                assert {f"{name}_low", f"{name}_high"} <= set(TABLES[view.table].meanings)


# A report without single people, which may be passed on.


def pages(run):
    return {
        path.relative_to(run.root).as_posix(): path.read_text(encoding="utf-8")
        for pattern in ("*.html", "pages/*.html", "report.json", "methods*")
        for path in run.root.glob(pattern)
    }


@pytest.mark.ci
def test_a_report_of_groups_names_nobody_and_has_no_page_of_a_person(tmp_path):
    run = make_run(tmp_path / "run", RunPlan())
    people = set(read_table(run.root / "scans.tsv", ["participant_id"])["participant_id"])
    write_report(run)
    before = pages(run)
    assert any(name.startswith("sub-") for name in before)
    assert sum(any(person in text for person in people) for text in before.values()) > len(people)

    text = run.config.read_text(encoding="utf-8")
    assert "people = true" in text
    write_text(run.config, text.replace("people = true", "people = false"))
    report = write_report(run)
    after = pages(run)
    assert report.faults == ()
    named = {name: [person for person in people if person in page] for name, page in after.items()}
    assert {name: found for name, found in named.items() if found} == {}
    assert not any(name.startswith("sub-") for name in after)
    assert "shows groups only" in after["report.html"]
    assert "Mean maps" in after["report-maps.html"]


# The sections on what differs in images: which regions are named for what, and clusters voxel by voxel.


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """AD is darker in the hippocampus and the putamen; evidence differs in the planted regions."""
    plan = RunPlan(people=12, betas=(0.0,), guided=False, evidence=True)
    layout = make_run(tmp_path_factory.mktemp("run") / "run", plan)
    test = dict(source="expectedGradients", n_voxels=900, voxel_mm=4.0, fwhm_mm=8.0, t=-5.5, critical_t=4.4, p_fwe=0.01)
    test |= dict(p_fwe_tfce=0.01, n_higher=0, n_lower=27, covariates="fold, age", n_positive=12, n_negative=12)
    test |= dict(n_permutations=99, note=None)
    nothing = {"source": "intensity", "p_fwe_tfce": 0.4, "n_lower": 0, "t": 2.0}
    cluster = dict(source="expectedGradients", cluster="1", x_mm=-26.0, y_mm=-20.0, z_mm=-16.0, t=-5.5, p_fwe=0.01)
    cluster |= dict(p_fwe_tfce=0.01, volume_mm3=1728.0, group="Hippocampus", regions="Hippocampus 60 %")
    for table, rows in zip(VOXELWISE_TABLES, ([test | nothing, test], [cluster]), strict=True):
        table.write(layout, rows)
    grid = template_grid(4.0)
    values = np.zeros(grid.shape)
    values[16:19, 25:28, 13:16] = -5.5
    path = layout.voxel_map("expectedGradients", "tThresholded")
    path.parent.mkdir()
    write_template_image(path, values, grid)
    return layout


def test_each_region_is_named_for_what_was_found(layout):
    material = Material.of(layout)
    content = differences.build_regions(material)
    (block,) = content["blocks"]
    assert "1 region differs and is used: hippocampus." in block["said"]
    assert "1 region differs without being used clearly: putamen." in block["said"]
    assert "4 regions are used without differing clearly: " in block["said"]
    assert "entorhinal area" in block["said"]
    assert "Over 67 regions" in block["said"] or "Over 68 regions" in block["said"]
    assert block["figure"] is not None
    verdict = differences.verdict_on_regions(material.run)
    assert verdict.answer.startswith("1 region differs and is used: hippocampus.")
    rows = differences.rows_of_leader(material.run)
    first = [str(rows["group"].iloc[place]) for place in named(rows)]
    assert {PLANTED[0], "Putamen"} <= set(first)
    texts = [text.get_text() for text in draw_differences(rows, "images", "map").axes[0].texts]
    assert {PLANTED[0], "Putamen", "Entorhinal area"} <= set(texts)


def test_voxels_are_counted_placed_and_drawn(layout):
    material = Material.of(layout)
    content = differences.build_voxels(material)
    first, second = content["blocks"]
    assert "Intensity of the images: no voxel with a corrected p below 0.05 (smallest p\xa0=\xa00.40)." in first["said"]
    assert first["figure"] is None
    assert second["said"] == (
        "The map of Expected gradients: 27 of 900 voxels (27 lower and 0 higher in AD), first at hippocampus."
    )
    assert second["figure"] is not None
    assert content["folder"] == "group/voxelwise"
    assert not material.faults.said
    assert "27 of 900 voxels" in differences.verdict_on_voxels(material.run).answer


def test_a_damaged_map_is_a_fault_and_no_crash(layout):
    path = layout.voxel_map("expectedGradients", "tThresholded")
    whole = path.read_bytes()
    path.write_bytes(b"no image")
    try:
        material = Material.of(layout)
        assert differences.build_voxels(material)["blocks"][1]["figure"] is None
        assert "stat-tThresholded" in next(iter(material.faults.said))
    finally:
        path.write_bytes(whole)  # the other tests share it


# Sentences of the methods text that a setting or a table decides, on both sides.

FOLDER = Path("nowhere")


def methods_record(tables: dict[str, pd.DataFrame], **sections: dict[str, object]) -> RunRecord:
    """A run that has only these tables."""
    config = load_config(overrides=sections)
    return RunRecord(RunLayout(FOLDER), config, RunInput(FOLDER, "default"), tables, {}, {}, {}, {})


@pytest.mark.parametrize(("held", "said"), [
    ([True, True], "participants are reassigned within their fold only"), ([False, False], "fold is not in the model"),
])  # fmt: skip
def test_networks_of_folds_are_held_as_the_table_says(held, said):
    tables = {"performance": pd.DataFrame({"a": [1]}), "group_comparisons": pd.DataFrame({"fold_held": held})}
    assert said in methods._statistics(methods_record(tables))


@pytest.mark.parametrize(("columns", "said"), [
    ("label + age", "with their class, age in the model, so that their effects are not removed as effects of the site"),
    ("", "training participants of each fold, and applied"),
])  # fmt: skip
def test_combat_uses_the_class_in_training_if_set_to(columns, said):
    run = methods_record(
        {"site_effects": pd.DataFrame({"a": [1]})}, statistics={"harmonisation": {"training_covariates": columns}}
    )
    text = methods.further_analyses(run)
    assert said in text
    assert ("they are not used for the participants tested" in text) == bool(columns)


def test_folds_are_said_to_be_balanced_for_what_they_were():
    scans = pd.DataFrame({"participant_id": ["a"], "kept": [True], "label": ["AD"]})
    balance = pd.DataFrame({"variable": ["class", "age", "sex", "site"], "balanced": [True, True, True, False]})
    text = methods._data(methods_record({"scans": scans, "split_balance": balance}))
    assert "into 5 folds, stratified by class and balanced for age and sex; no participant" in text
    assert "balanced" not in methods._data(methods_record({"scans": scans}))


@pytest.mark.parametrize(("transform", "packages", "said"), [
    ("affine", {"antspyx": "absent", "torch": "2.13.0"}, "affinely (12 parameters by mutual information, in PyTorch 2"),
    ("affine-torch", {"antspyx": "0.6.3", "torch": "2.13.0"}, "by mutual information, in PyTorch 2.13.0 [@torch])"),
    ("affine", {"antspyx": "0.6.3", "torch": "2.13.0"}, "with ANTs (ANTsPy 0.6.3 [@antsx]"),
])  # fmt: skip
def test_what_registered_the_scans_is_said(transform, packages, said):
    table = pd.DataFrame({"brain_extraction": ["given"], "flags": [None]})
    run = methods_record({"registration": table}, registration={"transform": transform})
    assert said in methods._registration(dataclasses.replace(run, provenance={"packages": packages}))


def test_covariates_are_in_words_and_named_once():
    table = pd.DataFrame({"covariates": ["fold", "fold, age, sex[T.M]", None]})
    text = methods.further_analyses(methods_record({"associations": table}))
    assert "held constant: test fold, age and sex, each those that its row of the table names (Freedman" in text


def test_audit_names_only_places_that_were_there():
    table = pd.DataFrame({"compartment": ["fluid", "rim", "vessel"], "enrichment": [1.2, 0.9, float("nan")]})
    text = methods.further_analyses(methods_record({"shortcuts": table}))
    assert "(fluid and rim of the mask)" in text
    assert methods.further_analyses(methods_record({"shortcuts": table[2:]})) == ""


@pytest.mark.parametrize(("r", "said"), [(-0.4, True), (float("nan"), False)])
def test_change_within_participants_is_described_where_it_is_known(r, said):
    association = pd.DataFrame({"unit": ["participant", WITHIN], "r": [-0.3, r]})
    tables = {"performance": pd.DataFrame({"a": [1]}), "volume_association": association}
    text = methods._statistics(methods_record(tables))
    assert ("[@rmcorr], the signs of participants' change in relevance being flipped." in text) == said


@pytest.mark.parametrize(("estimate", "said"), [(0.2, True), (float("nan"), False)])
def test_p_of_change_over_visits_is_not_the_model_s(estimate, said):
    text = methods.further_analyses(methods_record({"trajectories": pd.DataFrame({"estimate": [estimate]})}))
    assert ("mean slopes were tested by flipping signs" in text) == said


@pytest.mark.parametrize(("settings", "said"), [
    ({}, ""),
    ({"kind": "guided", "regions": ["Hippocampus", "Amygdala"], "annotated": 0.1},
     " Maps of input times gradient were guided into the mask of Hippocampus and Amygdala (energy loss, with weight "
     "30, 10 % of the training participants) [@guidance]."),
    ({"kind": "distilled", "teacher": "run", "temperature": 2.0},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 2), and its maps of Grad-CAM with weight 1 [@e2kd]."),
    ({"kind": "distilled", "teacher": "run", "map": "inherent", "scans": "other"},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 1), and its maps of contributions of the network's own linear map with weight 1 [@e2kd]. They saw "
     "scans of an unrelated cohort, not those of the training part."),
    ({"kind": "distilled", "teacher": "run", "weight": 0.0, "mixup": 0.5},
     " Networks learned the answers of a teacher, the network of the same fold of another run, instead of the labels "
     "(temperature 1), and its maps of Grad-CAM with weight 0 [@e2kd]. Both saw each scan mixed with another (MixUp, "
     "α = 0.5) [@mixup]."),
    ({"kind": "distilled", "teacher": "run", "map": "attention-transfer", "weight": 10.0},
     " Networks learned the labels, and the maps of a teacher, the network of the same fold of another run: attention "
     "(squared features summed over channels) [@attentiontransfer], with weight 10."),
    ({"kind": "guided", "map": "evidence", "regions": ("brain",), "annotated": 0.1},
     " Maps of expected gradients [@expectedgradients] from the mean control were guided into the mask of brain "
     "(energy loss, with weight 30, 10 % of the training participants) [@guidance]."),
    ({"kind": "readable-gradients", "weight": 0.5},
     " The input gradient of the loss was kept like that of guided backpropagation (cosine, with weight 0.5) "
     "[@readable]."),
    ({"kind": "readable-gradients", "guided_alone": True},
     " Networks learned the task by the gradients of guided backpropagation alone [@readable]."),
])  # fmt: skip
def test_what_networks_learned_besides_the_task_is_said(settings, said):
    config = load_config(overrides={"objective": settings})
    assert kind_of(config).sentence(config) == said


def test_with_whom_the_network_was_trained_that_another_started_from_is_said():
    started = methods_record({}, training={"from_run": "before"})
    started = dataclasses.replace(started, models={0: {"backbone_participants": ["sub-1", "sub-2"]}})
    assert "weights of a network that had been trained with 2 participants" in methods._fitting(started)
    assert "from the weights" not in methods._fitting(methods_record({}))


# What an effect found in nearly every region is worth.


@pytest.mark.parametrize(("passing", "said"), [(9, True), (8, False)])
def test_found_nearly_everywhere_is_no_evidence_of_place(passing, said):
    answers = pd.DataFrame(
        dict(effect=["disease", "severity_mmse", "null_education"], result=["found"] * 2 + ["not"])
        | dict(verdict="as planted", analysis=["group_comparisons.tsv", "associations.tsv", "main_effects.tsv"])
    )
    p = [0.001] * passing + [0.5] * (10 - passing)
    between = pd.DataFrame({"map": "lrpB000", "metric": "density", "comparison": "AD/CN", "p_fwe": p})
    scores = dict(map="lrpB000", metric="density", biomarker="mmse", estimator="pearson")
    scores = pd.DataFrame(scores | dict(scan_group=["all"] * 3 + ["AD"] * 2, p_fwe=[0.01, 0.5, 0.5, 0.2, 0.3]))
    tables = {"planted_effects": answers, "group_comparisons": between, "associations": scores}
    config = load_config(overrides={})
    run = RunRecord(RunLayout(FOLDER), config, RunInput(FOLDER, "default"), tables, {}, {}, {}, {})
    found = PLANTED_EFFECTS.answered(run)
    assert (found is not None) == said
    if found is not None:
        assert found.answer == "3 of 3 answers are as planted, but 1 of them is no evidence of place."
        assert "nearly every region passes: disease in 9 of 10 regions. Within AD, 0 of 2 correlations" in found.grounds


# Relevance against atrophy as the report tells it: what is drawn is what r is of, and the answer is a word.


@pytest.fixture(scope="module")
def volume_run(tmp_path_factory) -> RunLayout:
    """A run with enough true positives for fold to be held, whose networks differ in scale."""
    layout = make_run(tmp_path_factory.mktemp("volume") / "run", RunPlan(betas=(0.0, 1.0), people=12))
    return layout


@pytest.mark.parametrize("name", ["lrpB000", "gb"])
def test_the_points_drawn_are_those_that_r_is_of(volume_run, name):
    record = read_run(volume_run)
    estimate, points = volume_estimate(record, name), participant_points(record, name)
    assert estimate.fold_held
    assert np.corrcoef(points["volume"], points["relevance"])[0, 1] == pytest.approx(estimate.value, abs=1e-9)
    assert points.mean().abs().max() < 1e-9
    figure = draw_volume_scatter(
        {"A": points, "B": points}, {"A": "", "B": ""}, {"A": "logits", "B": "relevance"}, "volume", ["A"]
    )
    ends = figure.axes[0].lines[0].get_xydata()
    slope = (ends[1, 1] - ends[0, 1]) / (ends[1, 0] - ends[0, 0])
    assert slope == pytest.approx(estimate.value * points["relevance"].std() / points["volume"].std())
    assert figure.axes[0].get_ylabel().endswith("minus the mean of the test fold")
    assert "minus" not in figure.axes[1].get_xlabel()


def test_false_positives_stand_beside_the_true_ones_on_the_same_axes(volume_run):
    """Figure 8 of the founding study has both."""
    record = read_run(volume_run)
    table, name = record.tables["volume_points"], "lrpB000"
    table = table[table["map"] == name]
    assert set(table["outcome"]) == {"TP", "FP"}
    people = table.groupby(["outcome", "participant_id"])[["hippocampus_per_tiv", "relevance_sum", "fold"]].mean()
    base = people.loc["TP"].groupby("fold").mean()
    expected = people.loc["FP"]
    points = participant_points(record, name, "FP")
    for column, of_table in (("volume", "hippocampus_per_tiv"), ("relevance", "relevance_sum")):
        less = base.loc[expected["fold"], of_table].to_numpy()
        assert points[column].tolist() == pytest.approx((expected[of_table] - less).tolist(), rel=1e-9)
    own = participant_points(record, name)
    figure = draw_volume_scatter({"A": own}, {"A": ""}, {"A": "logits"}, "volume", ["A"], {"A": points})
    filled, opened = figure.axes[0].collections
    np.testing.assert_allclose(opened.get_offsets(), points[["volume", "relevance"]])
    assert len(filled.get_offsets()) == len(own)
    assert len(opened.get_facecolors()) == 0
    caption = build(Material.of(volume_run))["scatter"].caption
    assert f"open, {len(points)} false positives" in caption


def test_points_are_as_they_are_where_fold_is_not_held(volume_run):
    path = volume_run.statistics("volume_association")
    before = path.read_bytes()
    try:
        write_table(path, read_table(path).assign(fold_held=False))
        record = read_run(volume_run)
        assert participant_points(record, "lrpB000")["volume"].min() > 0
        content = build(Material.of(volume_run))
        assert "within test folds" not in content["lead"] + content["scatter"].caption + content["table"].caption
    finally:
        path.write_bytes(before)


def test_the_table_of_every_analysis_says_what_its_units_mean(volume_run):
    table = read_run(volume_run).tables["volume_association"]
    shown = set(table.loc[table["r"].notna(), "unit"])
    caption = build(Material.of(volume_run))["all"].caption
    assert {unit for unit in UNITS if f"Unit {unit}: " in caption} == shown
    assert shown >= {"participant", "scan"}


def test_section_says_that_r_is_within_test_folds(volume_run):
    content = build(Material.of(volume_run))
    for text in (content["lead"], content["scatter"].caption, content["scatter"].alt, content["curve"].caption,
                 content["table"].caption, content["all"].caption):  # fmt: skip
        assert "within test folds" in text


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("headline", "guided", "answer"),
    [
        ((-0.6, 0.2), (0.5, 0.1), "No clear correlation. "),
        ((-0.6, 0.01), (-0.5, 0.2), "Yes. "),
        ((0.6, 0.01), (0.5, 0.2), "No: the opposite"),
        ((-0.6, 0.01), (0.5, 0.02), "The maps contradict each other. "),
        ((-0.6, 0.2), (0.5, 0.02), "No clear correlation by the headline map. "),
    ],
)
def test_agreement_with_atrophy_is_answered_by_what_survives_correction(volume_run, headline, guided, answer):
    path = volume_run.statistics("volume_association")
    before = path.read_bytes()
    try:
        table = read_table(path)
        for name, (r, p_fdr) in {"lrpB000": headline, "gb": guided}.items():
            table.loc[table["map"] == name, ["r", "p", "p_fdr"]] = [r, 0.004, p_fdr]
        write_table(path, table)
        card = next(
            one for one in summarise(read_run(volume_run)).answers if one.question == "Does relevance follow atrophy?"
        )
    finally:
        path.write_bytes(before)
    clear = headline[1] < 0.05
    assert card.figure == (f"r = {fixed(headline[0])}" if clear else "No clear correlation")
    assert (card.text if clear or "map" in answer else f"{card.figure}. ").startswith(answer)
    assert (f"r = {fixed(headline[0])};" in card.figure_caption) == (not clear)
    assert "0.004" not in (card.text + card.more).replace("\xa0", " ")
    assert card.more.count("within test folds") == 2
    for _, p_fdr in (headline, guided):
        assert f"{p_value(p_fdr)}, FDR-corrected over the maps)" in card.more
    assert ("disagree in the sign" in card.more) == (headline[0] * guided[0] < 0)


@pytest.mark.parametrize(("g", "p", "told"), [(-1.82, 0.004, True), (-1.82, 0.4, False), (1.82, 0.004, False)])
def test_a_smaller_share_in_the_hippocampus_stands_beside_the_agreement_with_atrophy(volume_run, g, p, told):
    found = read_run(volume_run)
    table = found.tables["group_comparisons"].copy()
    here = (table["map"] == "lrpB000") & (table["metric"] == "share") & (table["comparison"] == "AD/CN")
    table.loc[here, "p_fwe"] = 1.0
    table.loc[here & (table["group"] == "Hippocampus"), ["difference", "hedges_g", "p_fwe"]] = [g / 1000, g, p]
    table[["hedges_g_low", "hedges_g_high"]] = [-2.5, -1.0]
    cards = summarise(replace(found, tables={**found.tables, "group_comparisons": table})).answers
    card = next(one for one in cards if one.question == "Does relevance follow atrophy?")
    said = "hippocampus (g −1.82 [−2.50 to −1.00]) holds a smaller share of the map in AD than in CN"
    assert (said in card.text) == told
    assert ("smaller share" in card.text) == told


# Runs of several classes and of a number: groups of mean maps, ranking of regions, demographics, what is undefined.

TASKS = {
    "two": {"positive": "AD", "negative": "CN"},
    "three": {"classes": ["CN", "MCI", "AD"], "positive": "AD"},
    "number": {"target": "age"},
}
NAMES = {"two": "predictions", "three": "predictions_classes", "number": "predictions_number"}


def made(task: str) -> RunRecord:
    """Four scans of three people, with relevance in one region."""
    scans = pd.DataFrame({"participant_id": ["sub-1", "sub-1", "sub-2", "sub-3"], "scan_id": ["I1", "I2", "I3", "I4"]})
    labels = ["60", "61", "70", "80"] if task == "number" else ["CN", "CN", "CN" if task == "two" else "MCI", "AD"]
    predictions = scans.assign(label=labels, fold=0)
    if task != "number":
        predictions["outcome"] = ["TN", "TN", "FP", "TP"]
    relevance = scans.assign(map="lrpB000", group="Hippocampus", n_voxels=900, sum=0.0, gain=float("nan"))
    relevance["density"] = [1.0, 3.0, 6.0, 10.0]
    tables = {NAMES[task]: predictions, "relevance_bilateral": relevance}
    config = load_config(overrides={"cohort": TASKS[task], "attribution": {"betas": [0.0]}})
    return RunRecord(RunLayout(Path("nowhere")), config, RunInput(Path("nowhere"), "default"), tables, {}, {}, {}, {})


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("two", {"AD": (1, 1), "CN": (3, 2), "TP": (1, 1), "FP": (1, 1), "TN": (2, 1), "FN": (0, 0)}),
        ("three", {"AD": (1, 1), "not AD": (3, 2), "TP": (1, 1), "FP": (1, 1), "TN": (2, 1), "FN": (0, 0)}),
        ("number", {"all": (4, 3)}),
    ],
)
def test_every_task_has_its_groups_of_mean_maps(task: str, sizes: dict[str, tuple[int, int]]) -> None:
    run = made(task)
    assert run.group_sizes == sizes
    assert run.map_groups == tuple(sizes)[: 1 if task == "number" else 2]


@pytest.mark.parametrize(
    ("task", "mean", "group"),
    [
        ("two", 10.0, "scans labelled AD"),
        ("three", 10.0, "scans labelled AD"),
        ("number", (2 + 6 + 10) / 3, "all scans"),
    ],
)
def test_regions_are_ranked_whatever_the_task(task: str, mean: float, group: str) -> None:
    means, ranked_in = ranking(made(task), "lrpB000", "density")
    assert means.to_dict() == {"Hippocampus": pytest.approx(mean)}
    assert ranked_in == group


@pytest.mark.parametrize(("task", "classes"), [("two", ["AD", "CN"]), ("three", ["AD", "MCI", "CN"]), ("number", [])])
def test_demographics_and_flow_have_every_class(task: str, classes: list[str]) -> None:
    run = made(task)
    rows = [
        {"label": label, "variable": "age", "n_participants": 3, "n_known": 3, "mean": 70.0, "sd": 5.0}
        for label in ("all", *classes)
    ]
    run.tables["demographics"] = pd.DataFrame(rows)
    table = _demographics(run)
    assert [column.key for column in table.columns] == ["title", *classes, "all"]
    assert [cell.text for cell in table.rows[0]] == ["Age, years", *["70.0 ± 5.0"] * (len(classes) + 1)]
    assert _split(run, pd.DataFrame({"label": classes})) == (
        f"scans: {', '.join(f'{name} 1' for name in classes)}" if classes else ""
    )


def test_the_regions_that_follow_a_number_stand_with_their_places() -> None:
    run, columns = made("number"), {"estimator": "pearson", "metric": "density", "map": "lrpB000", "p_fwe": 0.01}
    rows = pd.DataFrame({
        "group": ["Amygdala", "Hippocampus", "Thalamus", "Putamen"], "biomarker": "target", **columns,
        "r": [0.5, 0.7, 0.6, 0.1], "ci_low": 0.0, "ci_high": 0.9, "n_participants": 30, "place_low": [1, 1, 1, 4],
        "place_high": [3, 2, 3, 4],
    })  # fmt: skip
    run.tables["associations"] = pd.concat([rows, rows.assign(biomarker="mmse", r=0.9, place_low=None)])
    found = follows_number(run)
    assert found.answer == (
        "Density rises with age most in hippocampus (between place 1 and 2 of 4), thalamus (1 to 3) and amygdala (1 to "
        "3)."
    )
    assert found.grounds.startswith(
        "The first of all 4 regions is one of 3 (95 % confidence): hippocampus, thalamus and amygdala. Pearson's r in "
        "the first by estimate: 0.70 (95 % interval 0.00 to 0.90), 30 participants, LRP β=0; 4 of 4 regions "
    )
    run.tables["associations"] = rows.drop(columns=["place_low", "place_high"])
    assert follows_number(run).answer == "Density rises with age most in hippocampus, thalamus and amygdala."


@pytest.mark.parametrize("task", TASKS)
def test_what_is_not_defined_for_a_task_is_one_line(task: str) -> None:
    material = Material(made(task), Gallery(Path("nowhere")))
    section = next(one for one in QUESTIONS if one.id == "undefined")
    built = build_section(section, material)
    if task == "two":
        assert built is None
        return
    text = built.content["text"]
    assert text.startswith(f"Not defined for a run that {'predicts a number' if task == 'number' else 'has several'}")
    assert "Group comparisons" in text
    assert ("Region table" in text) == (task == "number")
    assert [build_section(one, material) for one in QUESTIONS if one.id in ("performance", "subgroups")] == [None, None]


@pytest.mark.parametrize(
    ("task", "unit", "mean"),
    [("two", "logits", "+10.00"), ("three", "logits", "+10.00"), ("number", "standard deviations of age", "+6.00")],
)
def test_evidence_leads_whatever_the_task(task: str, unit: str, mean: str) -> None:
    run = made(task)
    own = run.tables["relevance_bilateral"].assign(map="expectedGradients", sum=[1.0, 3.0, 6.0, 10.0])
    run.tables["relevance_bilateral"] = pd.concat(
        [run.tables["relevance_bilateral"], own.assign(evidence=own["sum"])], ignore_index=True
    )
    assert (run.leading_map, run.main_maps[1], run.evidence_unit) == ("expectedGradients", "lrpB000", unit)
    table = _evidence_table(Material(run, Gallery(Path("nowhere"))), run.leading_map)
    assert [[cell.text for cell in row] for row in table.rows] == [["Hippocampus", mean, "900"]]
    assert table.columns[1].title == f"Evidence, {unit}"
