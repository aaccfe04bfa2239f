"""Figures of grids: what is drawn, against the tables that the evaluation writes."""

from __future__ import annotations

import html
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba

from heatlas.reports.figures import gallery
from heatlas.reports.frame.pages import render_part
from heatlas.reports.page.sections import QUESTIONS, BuiltSection
from heatlas.studies.grids.directions import GRIDS_TABLE
from heatlas.studies.grids.grid_scores import CONSTRUCTED
from heatlas.studies.grids.stage import agreement_table
from heatlas.studies.pages.grids import (
    LOOKS,
    agreement,
    depth_curves,
    draw_agreement,
    draw_depth_curves,
    draw_grids,
)

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
