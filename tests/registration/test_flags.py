"""Which registrations are in doubt, and what happens to them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from heatlas.pipeline.cohort.records import Scan, ScanTable
from heatlas.pipeline.registration.quality.doubt import decide, dropped_reason, require_decisions
from heatlas.pipeline.registration.quality.outliers import MIN_COHORT, flag_reasons, robust_distance
from heatlas.pipeline.registration.settled import RELIABILITY, settle_scans
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import BadInputError, ResumableError
from heatlas.pipeline.run.tables import read_table

GOOD = dict(correlation=0.71, normalised_mutual_information=1.06, dice=0.98, min_jacobian=0.45)
GOOD |= dict(nonpositive_jacobian_share=0.0, affine_residual_mm=1.9, scale=0.91, scale_x=0.9, scale_y=0.97)
GOOD |= dict(scale_z=0.86, brain_mm3=1.4e6, dark_ml=0.5, outside_share=0.02)


def cohort(n: int, **changed: float) -> pd.DataFrame:
    """`n` ordinary scans; the first has other numbers."""
    rng = np.random.default_rng(2)
    spread = {"correlation": 0.015, "dice": 0.004, "brain_mm3": 1e5, "scale": 0.03, "affine_residual_mm": 0.25}
    rows = [
        {name: value + spread.get(name, 0) * rng.uniform(-1.5, 1.5) for name, value in GOOD.items()} for _ in range(n)
    ]
    rows[0].update(changed)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("n", [1, MIN_COHORT - 1, MIN_COHORT, 200])
def test_ordinary_scans_are_not_flagged(n: int) -> None:
    assert flag_reasons(cohort(n)) == [()] * n


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("correlation", 0.2, "correlation with the template 0.2 is below 0.25"),
        ("dice", 0.7, "Dice of the brain masks 0.7 is below 0.75"),
        ("nonpositive_jacobian_share", 0.001, "folded share of the warp 0.001 is above 0"),
        ("scale", 0.66, "size of the head against the template 0.66 is below 0.75"),
        ("brain_mm3", 5.7e5, "brain volume (mm3) 570,000 is below 800,000"),
        ("brain_mm3", 2.4e6, "brain volume (mm3) 2,400,000 is above 2,300,000"),
        ("scale_z", 1.27, "stretched 1.41 times more along one axis"),
    ],
)
@pytest.mark.parametrize("n", [1, 30])
def test_limits_hold_alone_and_in_a_cohort(n: int, column: str, value: float, words: str) -> None:
    found = flag_reasons(cohort(n, **{column: value}))
    assert any(words in reason for reason in found[0])
    assert found[1:] == [()] * (n - 1)


def test_a_lesion_alone_has_a_limit_only_after_a_warp_and_stands_out_among_others() -> None:
    assert flag_reasons(cohort(1, dark_ml=15.0))[0] == ("part dark as a lesion (ml) 15 is above 10",)
    assert flag_reasons(cohort(1, dark_ml=15.0, affine_residual_mm=0.0))[0] == ()
    assert "lesion (ml) 19 is far above the others (median 0.5 of 30" in flag_reasons(cohort(30, dark_ml=19.0))[0][0]


def test_patients_after_an_affine_map_are_judged_by_each_other() -> None:
    """Numbers of the 131 good and the two misplaced older people of OASIS-1, at 4 mm."""
    rng = np.random.default_rng(3)
    table = cohort(133)
    table["correlation"] = np.clip(rng.normal(0.57, 0.08, 133), 0.34, 0.72)
    table["dice"], table["affine_residual_mm"] = 0.91 + rng.uniform(-0.02, 0.02, 133), 0.0
    table["dark_ml"] = np.exp(rng.normal(2.3, 1.0, 133)).clip(0.2, 146)
    table["brain_mm3"], table["outside_share"] = 2.02e6 + rng.uniform(-1e5, 1e5, 133), 0.12
    table.loc[[5, 9], "correlation"] = [0.097, 0.171]
    found = [bool(reasons) for reasons in flag_reasons(table)]
    assert found[5]
    assert found[9]
    assert sum(found) <= 2 + 0.05 * 131
    few = flag_reasons(table.iloc[2:9])
    assert [bool(reasons) for reasons in few] == [False, False, False, True, False, False, False]


@pytest.mark.parametrize(("column", "value"), [("correlation", 0.6), ("dice", 0.93), ("affine_residual_mm", 4.0)])
def test_what_stands_out_on_its_bad_side_needs_a_cohort(column: str, value: float) -> None:
    found = flag_reasons(cohort(30, **{column: value}))
    assert len(found[0]) == 1
    assert "others (median" in found[0][0]
    assert found[1:] == [()] * 29
    assert flag_reasons(cohort(MIN_COHORT - 1, **{column: value}))[0] == ()


@pytest.mark.parametrize(("column", "value"), [("correlation", 0.9), ("dice", 1.0), ("affine_residual_mm", 0.2)])
def test_the_good_side_is_no_reason(column: str, value: float) -> None:
    assert flag_reasons(cohort(30, **{column: value}))[0] == ()


def test_one_wild_scan_does_not_hide_the_next() -> None:
    table = cohort(30, correlation=-0.9)
    table.loc[1, "correlation"] = 0.6
    found = flag_reasons(table)
    assert found[0]
    assert "far below the others" in found[1][0]


def test_a_cohort_of_equals_flags_no_trifle() -> None:
    table = pd.DataFrame([GOOD] * 30)
    table.loc[0, "correlation"] -= 0.08
    assert flag_reasons(table)[0] == ()
    table.loc[0, "correlation"] -= 0.01
    assert flag_reasons(table)[0] != ()


def test_a_child_is_flagged_and_missing_numbers_are_passed_over() -> None:
    table = cohort(3, correlation=np.nan)
    assert flag_reasons(table, [9.0, 18.0, None]) == [("aged 9: the template is the brain of adults",), (), ()]


def test_robust_distance_is_the_score_of_normal_values() -> None:
    values = np.random.default_rng(0).normal(5, 2, 200_001)
    assert robust_distance(values, 0.0).std() == pytest.approx(1, abs=0.01)


SCANS = [Scan(f"sub-{i:02d}", "ses-M000", f"I{i}", f"x/{i}.nii.gz") for i in range(1, 4)]
FLAGS = {"sub-01_ses-M000": "dice 0.7 is below 0.75", "sub-03_ses-M000": "folded"}


def ask(file: Path, flags: dict[str, str] = FLAGS) -> dict[str, str]:
    return decide(SCANS, flags, "ask", file, {"sub-01_ses-M000": "sub-01/x.png"})


def fill_in(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_keep_and_drop_decide_at_once_and_write_nothing(tmp_path: Path, policy: str) -> None:
    assert decide(SCANS, FLAGS, policy, tmp_path / "flagged.tsv", {}) == dict.fromkeys(FLAGS, policy)
    assert not list(tmp_path.iterdir())


def test_ask_stops_resumably_until_every_scan_has_a_decision(tmp_path: Path) -> None:
    file = tmp_path / "flagged.tsv"
    decisions = ask(file)
    with pytest.raises(ResumableError, match=r"flagged\.tsv: 2 of 2 .*sub-01_ses-M000") as stopped:
        require_decisions(decisions, file)
    assert stopped.value.exit_code == 75
    table = read_table(file)
    assert table["participant_id"].tolist() == ["sub-01", "sub-03"]
    assert table["figure"][0] == "sub-01/x.png"
    fill_in(file, "sub-01/x.png\tn/a", "sub-01/x.png\tKeep")
    assert ask(file) == {"sub-01_ses-M000": "keep", "sub-03_ses-M000": ""}
    fill_in(file, "folded\tn/a\tn/a", "folded\tn/a\tdrop")
    decisions = ask(file)
    assert decisions == {"sub-01_ses-M000": "keep", "sub-03_ses-M000": "drop"}
    require_decisions(decisions, file)
    # Other reasons than those decided on are asked about again.
    assert ask(file, {**FLAGS, "sub-01_ses-M000": "correlation 0.1"})["sub-01_ses-M000"] == ""


def test_a_decision_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "flagged.tsv"
    ask(file)
    fill_in(file, "folded\tn/a\tn/a", "folded\tn/a\tmaybe")
    with pytest.raises(BadInputError, match=r"flagged\.tsv: line 3, column decision: 'maybe'; write keep or drop"):
        ask(file)


def quality(**decisions: str) -> pd.DataFrame:
    return pd.DataFrame(
        [
            dict(scan_id=scan.scan_id, flags="folded" if scan.scan_id in decisions else None)
            | dict(decision=decisions.get(scan.scan_id), brain_mm3=1.4e6, brain_extraction="deepbet")
            for scan in SCANS
        ]
    )


OWN = {"I1": (3000.0, 3100.5), "I2": (2000.0, 2100.0)}


def test_a_dropped_scan_says_why_and_a_kept_one_stays() -> None:
    settings = RegistrationConfig(hippocampus_source="table")
    found = settle_scans(ScanTable(tuple(SCANS)), quality(I1="drop", I3="keep"), {}, "atlas", settings)
    assert [scan.kept for scan in found] == [False, True, True]
    assert found.scans[0].reason == dropped_reason("folded") == "registration in doubt: folded"
    assert found.scans[1:] == tuple(SCANS[1:])


def settled(source: Any, *scans: Scan, **settings: Any) -> list[tuple[float | None, str | None]]:
    config = RegistrationConfig(hippocampus_source=source, **settings)
    found = settle_scans(ScanTable(scans), quality(), OWN, "cat12", config)
    return [(scan.hippocampus_mm3, scan.hippocampus_source) for scan in found]


TABLED = Scan("sub-01", "ses-M000", "I1", "x/1.nii.gz", hippocampus_mm3=7000.0, hippocampus_source="ADNIMERGE")
OURS = f"Jacobian of the registration without fluid, cat12 ({RELIABILITY})"


def test_own_volumes_are_used_where_there_are_none_and_never_mixed_unasked() -> None:
    assert settled("auto", *SCANS) == [(6100.5, OURS), (4100.0, OURS), (None, None)]
    assert settled("auto", TABLED, *SCANS[1:]) == [(7000.0, "ADNIMERGE"), (None, None), (None, None)]
    assert settled("fill", TABLED, *SCANS[1:]) == [(7000.0, "ADNIMERGE"), (4100.0, OURS), (None, None)]
    assert settled("jacobian", TABLED, *SCANS[1:]) == [(6100.5, OURS), (4100.0, OURS), (None, None)]
    assert settled("table", *SCANS) == [(None, None)] * 3


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"resolution_mm": 2.1}, "at 2.1 mm"),
        ({"resolution_mm": 4.0}, "at 4 mm"),
        ({"transform": "antsRegistrationSyNQuick[s]"}, "with antsRegistrationSyNQuick[s]"),
        (
            {"resolution_mm": 3.0, "transform": "antsRegistrationSyNQuickRepro[s]"},
            "at 3 mm and with antsRegistrationSyNQuickRepro[s]",
        ),
    ],
)
@pytest.mark.parametrize("source", ["auto", "fill", "jacobian"])
def test_settings_that_were_not_compared_with_manual_volumes_measure_no_hippocampus(
    source: Any, changed: dict[str, Any], why: str
) -> None:
    none = (None, f"none: hippocampi were not compared with manual volumes {why}")
    placed = dataclasses.replace(SCANS[2], entry="template")
    assert settled(source, *SCANS[:2], placed, **changed) == [none, none, (None, None)]
    if source == "fill":
        assert settled(source, TABLED, SCANS[1], **changed) == [(7000.0, "ADNIMERGE"), none]
    found = settle_scans(ScanTable(tuple(SCANS)), quality(), OWN, "cat12", RegistrationConfig(**changed))
    assert [scan.tiv_mm3 for scan in found] == [1.4e6] * 3  # the brain mask is measured in the scan


def test_volumes_of_the_input_stand_at_any_resolution_and_the_limit_itself_measures() -> None:
    assert settled("auto", TABLED, *SCANS[1:], resolution_mm=4.0) == [(7000.0, "ADNIMERGE"), (None, None), (None, None)]
    assert settled("table", *SCANS, resolution_mm=4.0) == [(None, None)] * 3
    assert settled("auto", *SCANS, resolution_mm=2.0)[0] == (6100.5, OURS)


def test_sides_and_brain_volume_come_along() -> None:
    first, *_ = settle_scans(ScanTable(tuple(SCANS)), quality(), OWN, "cat12", RegistrationConfig())
    assert (first.hippocampus_left_mm3, first.hippocampus_right_mm3) == (3000.0, 3100.5)
    assert (first.tiv_mm3, first.tiv_source) == (1.4e6, "brain mask of the registration (deepbet)")
