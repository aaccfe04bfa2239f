"""Parts of the bench on the page, and figures of grids."""

from __future__ import annotations

import html
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from heatlas.pipeline.evaluation.bench.table import SHIFT_CURVE_TABLE
from heatlas.pipeline.evaluation.bench.verdicts import DISTRACTORS_TABLE
from heatlas.reports.content.relevance.evaluation import (
    EvaluationPart,
    _draw_shifts,
    _part,
    applies,
    draw_shift_curves,
    shown_of_all,
)
from heatlas.reports.figures import gallery
from heatlas.reports.frame.pages import render_part
from heatlas.reports.page import sections
from heatlas.reports.page.sections import PART_VIEWS, QUESTIONS, BuiltSection
from heatlas.reports.questions.question import NAMED, ROWS
from heatlas.studies.consensus.agreement import CONSENSUS_TABLE, REGIONS_TABLE
from heatlas.studies.grids.directions import DIRECTIONS_TABLE, GRIDS_TABLE
from heatlas.studies.grids.grid_scores import CONSTRUCTED
from heatlas.studies.grids.stage import INVARIANCE_TABLE, agreement_table
from heatlas.studies.interactions.sides import INTERACTIONS_TABLE
from heatlas.studies.interactions.stage import SOURCES_TABLE
from heatlas.studies.pages.grids import LOOKS, agreement, depth_curves, draw_agreement, draw_depth_curves, draw_grids
from heatlas.studies.representations.table import REPRESENTATIONS_TABLE
from heatlas.studies.retraining.stage import RETRAINING_TABLE

# Parts of the evaluation on the page: what is shown of each table, against the table itself.

SHOWN = {one.table: one for one in shown_of_all()}
GROUPS = [f"Region {place}" for place in range(20)]

SHARES = {"deeplift": (0.3, 0.5), "lrp beta=0": (0.4, 0.6), "lrp beta=0.25": (0.9, 0.9)}


def table(columns, rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(columns))


def tables() -> dict[str, pd.DataFrame]:
    """All parts; in the order of the file nothing is sorted as the page shows it."""
    values = np.linspace(-0.1, 0.1, 20).tolist()
    grid = {"cohort": "run", "kind": "needle", "setting": "GridPG", "n_grids": 8, "n_participants": 8, "chance": 0.25}
    return {
        "distractors": table(DISTRACTORS_TABLE.meanings, [
            ["run", name, network, what, "marker", 7, ratio, limit, ratio > limit]
            for what, limit in (("spot", 0.5), ("rim", 1.0))
            for name, network, ratio in (("deeplift", "real", 0.75), ("lrpB000", "real", 1.5), ("edges", "none", 5.0))
        ]),
        "interactions_of_sides": table(INTERACTIONS_TABLE.meanings, [
            ["run", group, 9, 0.5, 0.25, 0.75 + value, value, value - 0.05, value + 0.05]
            for group, value in zip(GROUPS, values, strict=True)
        ]),
        "evidence_sources": table(SOURCES_TABLE.meanings, [
            ["run", name, group, 9, 0, value, -2 * value if place else 0.0, abs(value), -1.0, 1.0, -1.0, 1.0]
            for name in ("deeplift", "expectedGradients")
            for place, (group, value) in enumerate(zip(GROUPS, values, strict=True))
        ]),
        "grids": table(GRIDS_TABLE.meanings, [
            {**grid, "method": method, "stage": stage, "share": share, "ci_low": share - 0.1, "ci_high": share + 0.1}
            for method, shares in SHARES.items() for stage, share in zip((0, 4), shares, strict=True)
        ] + [{**grid, "setting": "DiPart", "kind": "corner", "method": "all", "note": "fold 0: no pooling."}]),
        "grid_directions": table(DIRECTIONS_TABLE.meanings, [
            {"claim": f"claim {place}", "holds": holds, "difference": 0.1, "n_participants": 8}
            for place, holds in enumerate(["open", "yes", None, "no", "yes", "by construction"])
        ]),
        "invariance": table(INVARIANCE_TABLE.meanings, [
            {"method": "deeplift", "n_grids": 4, "share_plain": 0.0, "share_cancelling": 0.0, "invariant": True},
            {"method": "lrp", "n_grids": 4, "share_plain": 0.0, "share_cancelling": 0.4, "invariant": False},
        ]),
        "representations": table(REPRESENTATIONS_TABLE.meanings, [
            {"features": features, "measure": measure, "classes": classes, "estimate": 0.6, "ci_low": 0.4,
             "ci_high": 0.8, "difference": 0.2, "difference_low": low, "difference_high": 0.4, "chance": 0.5, "p": p,
             "n_participants": 12}
            for features in ("untrained", "backbone")
            for measure, classes, low, p in (
                ("knn_1", "all", 0.1, None), ("knn_10", "all", -0.1, None), ("knn_1", "tail", 0.1, None),
                ("alignment", "all", 0.1, None), ("site", "all", 0.1, 0.04),
            )
        ]),
        "retraining": table(RETRAINING_TABLE.meanings, [
            {"map": name, "volume_share": 0.05, "balanced_accuracy": 0.9 - drop, "balanced_accuracy_drop": drop,
             "balanced_accuracy_random_drop": 0.02, "p_balanced_accuracy": p, "n_draws": 19}
            for name, drop, p in (("nothing", 0.0, np.nan), ("lrpB000", 0.01, 0.6), ("deeplift", 0.2, 0.05 - 1e-9),
                                  ("random", 0.02, np.nan))
        ]),
        "shift_curve": table(SHIFT_CURVE_TABLE.meanings, [
            {"cohort": "run", "map": name, "shift": shift, "correlation": 1 - fall * shift, "in_place": 0.5,
             "correlation_low": 1 - 2 * fall * shift, "correlation_high": 1.0, "n_participants": 7}
            for name, fall in (("deeplift", 0.1), ("lrpB000", 0.05)) for shift in (4, 0)
        ]),
        "consensus": table(CONSENSUS_TABLE.meanings, [
            {"map": name, "differ_in": kind, "region_spearman": value, "shared_first": 6, "shared_first_expected": 1.5}
            for name, kind, value in (("deeplift", "seed", 0.7), ("deeplift", "seed", 0.9), ("deeplift", "folds", 0.5),
                                      ("lrpB000", "seed", 0.6))
        ]),
    }  # fmt: skip


def run_of(**own: pd.DataFrame) -> SimpleNamespace:
    return SimpleNamespace(
        tables=own, leading_map="expectedGradients", unreadable={},
        has=lambda *names: all(name in own for name in names), why_absent=lambda *names, otherwise: otherwise,
    )  # fmt: skip


def part_of(name: str, run: SimpleNamespace) -> EvaluationPart:
    """A part without its figures."""
    views = {view.name: replace(view, figures=None) for view in PART_VIEWS.values()}
    return _part(views, SimpleNamespace(run=run), SHOWN[name], shown_of_all()[SHOWN[name]])


def shown(name: str) -> EvaluationPart:
    return part_of(name, run_of(**tables()))


def cells(part: EvaluationPart) -> list[list[str]]:
    return [[cell.text for cell in row] for row in part.tables[0].rows]


def test_every_map_is_beside_its_distractors_and_those_that_mark_one_are_named() -> None:
    part = shown("distractors")
    assert [column.title for column in part.tables[0].columns] == ["Map", "spot (limit 0.5)", "rim (limit 1)"]
    assert cells(part)[0] == ["DeepLIFT", "0.75", "0.75"]
    assert part.text.endswith("Marked in the scans of the run: spot: DeepLIFT and LRP β=0; rim: LRP β=0.")


def test_regions_with_the_largest_interaction_come_first() -> None:
    part = shown("interactions_of_sides")
    assert cells(part)[0] == ["Region 0", "+0.500", "+0.250", "+0.650", "−0.100", "−0.150", "−0.050"]
    assert (len(cells(part)), part.tables[0].more) == (ROWS, 20 - ROWS)
    assert "either side suffices: region 19, region 18, region 17, region 16 and 1 more" in part.text
    assert "it needs both sides: region 0, region 1" in part.text


def test_sources_are_those_of_the_leading_map_where_the_classes_differ_most() -> None:
    known = tables()
    known["evaluation"] = pd.DataFrame(
        dict(cohort="run", map="expectedGradients", network=["shuffled-1", "real"], severity="all")
        | dict(first_groups=["Region 1", "Region 7; Region 3"])
    )
    part = part_of("evidence_sources", run_of(**known))
    assert part.tables[0].caption.startswith("Expected gradients; regions that differ most")
    assert "more with intensity than with volume in 11 of the 12 shown" in part.text
    assert [row[0] for row in cells(part)][:3] == ["Region 7", "Region 3", "Region 0"]
    assert [row[0] for row in cells(shown("evidence_sources"))][:2] == ["Region 0", "Region 19"]  # best explained


def test_shares_stand_beside_chance_without_the_studies() -> None:
    part = shown("grids")
    titles = [column.title for column in part.tables[0].columns]
    assert titles == ["Method", "GridPG, at the input (chance 0.25)", "GridPG, at the last stage (chance 0.25)"]
    assert cells(part) == [["LRP β=0", "0.40", "0.60"], ["DeepLIFT", "0.30", "0.50"]]
    assert "with the whole 95 % interval: LRP β=0. DiPart: fold 0: no pooling." in part.text


def test_maps_that_move_with_the_scan_stand_first_with_a_column_per_shift(tmp_path, monkeypatch) -> None:
    part = shown("shift_curve")
    assert [column.title for column in part.tables[0].columns] == ["Map", "0 voxels", "4 voxels"]
    assert cells(part) == [["LRP β=0", "1.00", "0.80"], ["DeepLIFT", "1.00", "0.60"]]
    assert part.tables[0].caption.startswith("Mean correlation over 7 participants.")
    assert "n/a: more than 0.1 % of the brain leaves the volume" in part.tables[0].caption
    own = tables()["shift_curve"]
    axes = draw_shift_curves(own.assign(title=own["map"]).sort_values(["map", "shift"])).axes
    for ax, fall in zip(axes, (0.1, 0.05), strict=True):
        curve, _, (bars,) = ax.containers[0].lines
        np.testing.assert_allclose(curve.get_xydata(), [[0, 1], [4, 1 - 4 * fall]])
        np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], [[1, 1], [1 - 8 * fall, 1]])
        assert list(ax.lines[1].get_ydata()) == [0.5, 0.5]  # maps that stay in their place
    monkeypatch.setattr(gallery, "rendered", lambda *_, **__: b"")
    material = SimpleNamespace(run=run_of(shift_curve=own), gallery=gallery.Gallery(tmp_path))
    assert [one.name for one in _draw_shifts(material)] == ["shift_curve.svg"]
    alone = SimpleNamespace(run=run_of(shift_curve=own[own["shift"] == 4]), gallery=gallery.Gallery(tmp_path))
    assert _draw_shifts(alone) == ()
    cut = own.assign(correlation=own["correlation"].where(own["shift"] == 0))
    assert _draw_shifts(SimpleNamespace(run=run_of(shift_curve=cut), gallery=gallery.Gallery(tmp_path))) == ()


@pytest.mark.parametrize(
    ("known", "first"), [((0, 4), ["LRP β=0", "1.00", "0.80", "n/a"]), ((), ["DeepLIFT", *["n/a"] * 3])]
)
def test_shifts_without_a_value_are_not_available_and_do_not_decide_the_order(known, first) -> None:
    own = tables()["shift_curve"]
    own = pd.concat([own, own[own["shift"] == 4].assign(shift=8)])
    own["correlation"] = own["correlation"].where(own["shift"].isin(known))
    own["n_participants"] = own["n_participants"].where(own["shift"].isin(known), 0)
    part = part_of("shift_curve", run_of(shift_curve=own))
    assert cells(part)[0] == first
    assert part.tables[0].caption.startswith("Mean correlation over at most 7 ") == (len(known) > 0)


def test_claims_that_do_not_hold_come_first_and_all_are_counted() -> None:
    part = shown("grid_directions")
    assert [row[:2] for row in cells(part)] == [["claim 3", "no"], ["claim 1", "yes"], ["claim 4", "yes"],
                                                ["claim 0", "open"], ["claim 5", "by construction"]]  # fmt: skip
    assert "Could not fail, as the map is made so: 1." in part.text
    assert "asked here: 4. Hold: 2; do not hold: 1; open, as the interval is too wide: 1." in part.text


def test_maps_that_depend_on_how_a_function_is_written_are_named() -> None:
    part = shown("invariance")
    assert [row[:2] for row in cells(part)] == [["DeepLIFT", "yes"], ["LRP", "no"]]
    assert part.text.endswith("Differ: LRP.")


def test_regions_that_networks_need_are_told_from_random_ones() -> None:
    part = shown("retraining")
    assert [row[:3] for row in cells(part)] == [["DeepLIFT", "5 %", "0.70"], ["LRP β=0", "5 %", "0.89"]]
    assert "not corrected): DeepLIFT (5 %). Balanced accuracy with all regions: 0.90." in part.text
    assert part.tables[0].caption.startswith("19 draws")


def test_sets_of_networks_are_compared_by_what_they_differ_in() -> None:
    regions = table(REGIONS_TABLE.meanings, [
        {"map": name, "group": group, "place": place, "mean_place": mean, "first_share": 1.0, "n_networks": 3}
        for name, places in (("lrpB000", ((1, 4.0), (2, 5.0))), ("deeplift", ((2, 3.0), (1, 1.5))))
        for group, (place, mean) in zip(("Amygdala", "Hippocampus"), places, strict=True)
    ])  # fmt: skip
    own = tables()
    part = part_of("consensus", run_of(**own, consensus_regions=regions))
    assert cells(part) == [
        ["DeepLIFT", "Other seeds", "2", "0.80", "6.0", "1.5", "n/a"],
        ["DeepLIFT", "Other folds", "1", "0.50", "6.0", "1.5", "n/a"],
        ["LRP β=0", "Other seeds", "1", "0.60", "6.0", "1.5", "n/a"],
    ]
    assert "rankings agree best for DeepLIFT (rank correlation 0.80). First over all: Hippocampus and Amygdala." in (
        part.text
    )
    assert [cell.text for cell in part.tables[1].rows[0]] == ["Hippocampus", "1.5", "100 %"]


def test_probes_of_the_backbone_that_beat_the_untrained_network_are_named() -> None:
    part = shown("representations")
    assert "(interval above 0): nearest person." in part.text
    assert "It also knows the site: 0.60 recognised, 0.50 by chance, p\xa0=\xa00.040." in part.text
    assert [row[:2] for row in cells(part)] == [
        ["Nearest person", "all"], ["Ten nearest people", "all"], ["Nearest person", "tail"], ["Site", "all"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(SHOWN))
def test_a_part_that_was_not_asked_names_its_command(name: str) -> None:
    own = {key: value for key, value in tables().items() if key != name}
    part = part_of(name, run_of(**own))
    assert part.text.startswith("Not asked: heatlas evaluate OUT")
    assert part.tables == ()
    assert applies(run_of(**{name: tables()[name]}))


def test_a_run_that_was_not_evaluated_has_no_parts() -> None:
    assert not applies(run_of())
    assert NAMED < ROWS


def test_sections_of_plugins_stand_after_the_one_that_they_name_or_at_the_end_of_their_page(monkeypatch) -> None:
    first = sections.evaluation.EVALUATION
    added = (replace(first, id="named", after="evaluation"), replace(first, id="unnamed", after=""))
    monkeypatch.setattr(sections, "ADDED", added)
    ids = [question.id for question in sections._in_order() if question.page == first.page]
    assert ids[:2] == ["evaluation", "named"]
    assert ids[-1] == "unnamed"


# Figures of grids: what is drawn, against the tables that the evaluation writes.

HOSTILE = '<b>own</b> & "$x$"'
TITLES = {"deeplift": "DeepLIFT", "grad-cam": "Grad-CAM", HOSTILE: HOSTILE, "lrp beta=0": "LRP β=0"}
GRIDS = 9


def shares() -> pd.DataFrame:
    """Four methods at three stages in two settings, rows not in order; Grad-CAM has none at the input, DeepLIFT no
    interval there. Pairs and studies are not drawn."""
    rows = []
    for place, method in enumerate(TITLES):
        for setting, kind in (("GridPG", "needle"), ("DiFull", "corner"), ("GridPG", "pair")):
            for stage in (4, 0, 2):
                share = 0.3 + 0.05 * place + 0.1 * stage - (0.2 if setting == "DiFull" else 0)
                row = dict(setting=setting, kind=kind, method=method, stage=stage, depth=stage / 4, share=share)
                row |= dict(ci_low=share - 0.1, ci_high=share + 0.2, chance=0.25)
                if method == "grad-cam" and stage == 0:
                    row |= dict.fromkeys(("share", "ci_low", "ci_high", "chance"), np.nan)
                if method == "deeplift" and stage == 0:
                    row |= {"ci_low": np.nan, "ci_high": np.nan}
                if method == "lrp beta=0" and setting == "DiFull":
                    row |= {"note": CONSTRUCTED}
                rows += [row, row | {"method": "smooth-input-x-gradient kernel=9"}] if not place else [row]
    return GRIDS_TABLE.frame([{"cohort": "run", **row} for row in rows])


def correlations() -> pd.DataFrame:
    """As the evaluation makes it; one method has the same share on all grids."""
    rng, rows = np.random.default_rng(3), []
    methods = [*TITLES, "smooth-input-x-gradient kernel=9", "lrp composite gamma=0.1", "gradient"]
    for setting, kind in (("GridPG", "needle"), ("DiFull", "corner")):
        rows += [
            {"setting": setting, "kind": kind, "method": method, "stage": stage, "grid": grid,
             "share": 0.5 if method == "gradient" else rng.random()}
            for method in methods for stage in ((0, 2, 4) if method in TITLES else (0,)) for grid in range(GRIDS)
        ]  # fmt: skip
    return agreement_table(pd.DataFrame(rows), "run")


def test_curves_are_the_rows_of_the_table() -> None:
    table = shares()
    axes = [ax for ax in draw_depth_curves(depth_curves(table)).axes if ax.get_visible()]
    assert [ax.get_title(loc="left") or ax.get_title() for ax in axes] == [TITLES[name] for name in sorted(TITLES)]
    for ax, method in zip(axes, sorted(TITLES), strict=True):
        assert ax.lines[0].get_ydata() == [0.25, 0.25]  # chance
        assert len(ax.containers) == 2
        for drawn, setting, kind in zip(ax.containers, ("GridPG", "DiFull"), ("needle", "corner"), strict=True):
            of = (table["method"] == method) & (table["setting"] == setting) & (table["kind"] == kind)
            own = table[of & table["share"].notna()].sort_values("stage")
            curve, _, (bars,) = drawn.lines
            np.testing.assert_allclose(curve.get_xydata(), own[["depth", "share"]].to_numpy(float))
            assert (to_rgba(curve.get_color()), curve.get_marker()) == (to_rgba(LOOKS[setting][0]), LOOKS[setting][1])
            ends = own[["ci_low", "ci_high", "share"]].astype(float).bfill(axis=1)[["ci_low", "ci_high"]]  # or no bar
            np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], ends)


def test_inherent_maps_inside_of_a_stem_lie_on_the_curve_of_those_behind_it() -> None:
    rows = [
        {"cohort": "run", "setting": "GridPG", "kind": "needle", "method": method, "stage": stage, "depth": depth,
         "share": share, "ci_low": share, "ci_high": share, "chance": 0.25}
        for method, stage, depth, share in (
            ("inherent", 0, 0.0, np.nan), ("inherent", 1, 0.5, 0.8), ("inherent", 2, 1.0, 0.9),
            ("inherent stem=1", 0, 0.2, 0.3), ("inherent stem=2", 0, 0.4, 0.5),
        )
    ]  # fmt: skip
    curves = depth_curves(GRIDS_TABLE.frame(rows))
    assert curves["method"].unique().tolist() == ["inherent"]
    assert curves[["depth", "share"]].to_numpy(float).tolist() == [[0.2, 0.3], [0.4, 0.5], [0.5, 0.8], [1.0, 0.9]]


def test_the_matrix_is_the_table() -> None:
    table = correlations()
    table = table[table["setting"] == "GridPG"]
    matrix = agreement(table)
    titles = {**TITLES, "smooth-input-x-gradient kernel=9": "Input × gradient, smoothed kernel=9"}
    places = [(name, 0) for name in titles] + [(name, 4) for name in TITLES]
    names = [f"{titles[name]}, {'stage 4' if stage else 'input'}" for name, stage in places]
    assert list(matrix.index) == list(matrix.columns) == names
    figure = draw_agreement(matrix)
    drawn = np.asarray(figure.axes[0].images[0].get_array(), dtype=float)
    known = table.set_index(["method_a", "stage_a", "method_b", "stage_b"])["spearman"].to_dict()
    expected = [[1.0 if a == b else known.get((*a, *b), known.get((*b, *a))) for b in places] for a in places]
    np.testing.assert_allclose(drawn, np.array(expected, dtype=float))
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == names
    texts = [text.get_text().replace("−", "-") for text in figure.axes[0].texts]
    assert [float(text) for text in texts] == pytest.approx(drawn.ravel().tolist(), abs=0.05 + 1e-9)


def pictures(tmp_path, **tables: pd.DataFrame):
    run = SimpleNamespace(tables=tables, has=tables.__contains__)
    return draw_grids(SimpleNamespace(run=run, gallery=gallery.Gallery(tmp_path)))  # type: ignore[arg-type]


def test_figures_say_what_they_show_and_are_escaped(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gallery, "rendered", lambda *_, **__: b"")
    own = correlations()
    found = pictures(tmp_path, grids=shares(), grid_agreement=own)
    assert [one.name for one in found] == ["grids_depth.svg", "grids_agreement.svg"]
    assert found[0].alt == "Curves of the share of 4 methods by depth, in GridPG and DiFull."
    assert found[0].caption.endswith("1 by construction in DiFull: LRP β=0.")
    assert found[1].alt == "Matrix of the rank correlations of the shares of 9 maps over grids."
    assert f"over {GRIDS} grids (GridPG)" in found[1].caption
    assert "within ±0.69" in found[1].caption  # 1.96 / √8
    hostile = shares().assign(note=None)
    hostile.loc[(hostile["method"] == HOSTILE), "note"] = CONSTRUCTED
    part = SimpleNamespace(title="", text="", tables=(), figures=pictures(tmp_path, grids=hostile))
    section = next(one for one in QUESTIONS if one.id == "evaluation-parts")
    page = str(render_part("section.html.j2", built=BuiltSection(section, {"parts": [part]})))
    assert f'alt="{part.figures[0].alt}"' in page
    assert f"in DiFull: {HOSTILE}." in html.unescape(page)
    assert "<b>" not in page


def test_tables_without_anything_to_draw_have_no_figure(tmp_path) -> None:
    nothing = shares().assign(share=np.nan)
    assert pictures(tmp_path, grids=nothing) == ()
    alike = correlations().assign(spearman=np.nan)
    assert pictures(tmp_path, grids=nothing, grid_agreement=alike) == ()
