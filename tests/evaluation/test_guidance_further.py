"""The further conditions of the guidance study: what is trained, and tables whose values are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from guidance_conditions import Condition, conditions, further
from guidance_study import kept, measured, parts_of, trained
from guidance_summary import further_tables, plain_summary
from guidance_weights import curve_columns, held_out_iou, swept, weights_chosen
from marked_cohort import Cohort, enlarged

SHAPE = (26, 26, 26)


@pytest.mark.parametrize("section", [conditions, further, swept])
def test_teachers_and_controls_are_there_and_taught_before(section) -> None:
    names = [one.name for one in section()]
    assert len(set(names)) == len(names)
    for one in section():
        assert one.against in names
        for earlier in filter(None, (one.teacher, one.begins)):
            assert names.index(earlier) < names.index(one.name)


@pytest.mark.parametrize(("share", "more"), [(0.0, 0), (0.1, 1), (0.25, 2), (0.5, 4)])
def test_each_box_grows_on_either_side_by_a_share_of_its_width(share, more) -> None:
    mask = torch.zeros(20, 20, 20, dtype=torch.bool)
    mask[6:14, 6, 6] = mask[6, 6:14, 6] = mask[6, 6, 6:14] = True  # one part, whose box is a cube of 8
    grown = enlarged(mask, share)
    wanted = torch.zeros_like(mask)
    wanted[(slice(6 - more, 14 + more),) * 3] = True
    assert torch.equal(grown, wanted)
    assert enlarged(mask, 2.0).all()  # clipped at the border


def small_cohort() -> Cohort:
    """24 people; patients have a bright block, and copies with the marker are no numbers at all."""
    random = np.random.default_rng(7)
    positive = np.arange(24) >= 12
    plain = torch.from_numpy(random.uniform(0.2, 0.6, (24, *SHAPE)).astype(np.float32))
    plain[torch.from_numpy(positive), 8:14, 8:14, 8:14] += 0.4
    block = torch.zeros(SHAPE, dtype=torch.bool)
    block[8:14, 8:14, 8:14] = True
    masks = {name: block for name in ("brain", "sides")}
    volumes = torch.stack([plain, torch.full_like(plain, float("nan"))], 1)
    return Cohort([f"p{n}" for n in range(24)], volumes, positive, masks, ~block, torch.zeros(0, *SHAPE))


def network(cohort: Cohort, name: str, tmp_path, teacher=None, epochs=1, **changes):
    (one,) = [one for one in further() if one.name == name]
    one = replace(one, **changes)
    return one, trained(cohort, one, 0, 3, teacher, tmp_path / f"{name}.safetensors", epochs)


def test_nobody_has_a_marker_in_training_or_testing(tmp_path) -> None:
    cohort = small_cohort()
    one, model = network(cohort, "plain", tmp_path)
    assert all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())
    testing = parts_of(cohort.positive, 0, 3)[2]
    rows = measured(cohort, model, None, one, testing)
    assert list(rows["person"]) == [cohort.names[place] for place in testing]
    assert not rows["marked"].any()
    assert rows["last_epg_sides"].dropna().between(0, 1).all()


def test_a_frozen_teacher_is_asked_once_for_each_scan_and_one_that_is_not_in_every_epoch(tmp_path) -> None:
    cohort = small_cohort()
    _, teacher = network(cohort, "bcos-plain", tmp_path)
    seen: list[int] = []
    teacher.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    learning = len(parts_of(cohort.positive, 0, 3)[0])
    for name, epochs, times in (("kd-bcos-frozen", 3, 1), ("kd-bcos", 3, 3)):
        seen.clear()
        network(cohort, name, tmp_path, teacher.requires_grad_(False), epochs)
        assert sum(seen) == times * learning


def test_few_people_learn_for_as_many_steps(tmp_path) -> None:
    """A quarter of the people for four times as many epochs."""
    few = [one for one in further() if one.people < 1]
    assert len(few) == 6
    assert all(one.people * one.longer == 1 for one in few)


def answers() -> pd.DataFrame:
    """Two seeds of six people: the control is right in 4 of 6 and 3 of 6, guidance in 5 and 4; it has no map twice."""
    rows = []
    for condition, right, epg in (("plain", (4, 3), 0.1), ("energy", (5, 4), 0.3)):
        for seed in (0, 1):
            for person in range(6):
                none = condition == "energy" and seed == 1 and person < 2
                rows.append(
                    dict(condition=condition, seed=seed, fold=0, part="test", person=f"p{person}")
                    | dict(positive=person % 2 == 1, marked=False, correct=int(person < right[seed]))
                    | dict(epg_sides=np.nan if none else epg + 0.1 * seed, last_epg_sides=epg, iou_sides=0.5)
                    | dict(on_object_epg_sides=0.5, on_marker_brain=0.0)
                )
    return pd.DataFrame(rows)


def test_the_table_has_means_and_differences_of_the_same_networks_seed_by_seed() -> None:
    text = plain_summary(answers(), further())
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    means = {line[0]: line for line in lines if len(line) == 10}
    assert means["plain"][1:4] == ["0.58", "0.67 0.50", "0.67 0.33"]
    assert means["plain"][4:] == ["0.150", "0.100", "0.500", "0%", "", ""]
    assert means["energy"][1:3] == ["0.75", "0.83 0.67"]
    assert means["energy"][7] == "17%"
    (change,) = [line for line in lines if line[:2] == ["energy", "plain"]]
    assert change[2].startswith("+0.167 [")
    assert change[2].endswith("; +0.167, +0.167")
    assert change[3:6] == ["+0.200; +0.200, +0.200", "+0.200; +0.200, +0.200", "+0.000; +0.000, +0.000"]
    assert change[6:] == ["", ""]


def test_the_section_has_the_tested_people_alone() -> None:
    rows = answers()
    wrong = rows[rows["condition"] == "plain"].assign(part="validation", correct=0)
    assert "| plain | 0.58 |" in further_tables(kept(pd.concat([rows, wrong]), further()), further())
    assert Condition("any").shown == "input-x-gradient"


def test_a_network_goes_on_from_the_weights_of_another(tmp_path) -> None:
    """Without an epoch of its own to speak of, it is that network."""
    cohort = small_cohort()
    one, start = network(cohort, "plain", tmp_path)
    seen = {name: value.clone() for name, value in start.state_dict().items()}
    on = trained(cohort, one, 0, 3, None, tmp_path / "on.safetensors", 1, start)
    assert all(torch.equal(value, seen[name]) for name, value in start.state_dict().items())
    moved = [float((on.state_dict()[name] - value).abs().max()) for name, value in seen.items() if "weight" in name]
    assert 0 < max(moved) < 0.05


def test_the_threshold_of_an_iou_is_that_of_the_validation_part() -> None:
    names = curve_columns("sides")
    curves = {"validation": [0.1] * 3 + [0.6] + [0.2] * 14, "test": [0.9] + [0.3] * 2 + [0.4] + [0.5] * 14}
    rows = [
        {"condition": name, "seed": 1, "fold": 0, "part": part, "iou_sides": 0.0}
        | (dict(zip(names, curve, strict=True)) if own else {})
        for name, own in (("bcos-on", True), ("kd", False))
        for part, curve in curves.items()
    ]
    found = held_out_iou(pd.DataFrame(rows)).set_index(["condition", "part"])["iou_sides"]
    assert found["bcos-on", "test"] == 0.4
    assert found["kd", "test"] == 0.0
    assert "iou_sides_0" not in held_out_iou(pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("accuracies", "wanted"), [((0.6, 0.6, 0.6), "10"), ((0.56, 0.55, 0.5), "3"), ((0.5,) * 3, "1")]
)
def test_a_weight_is_chosen_by_its_maps_among_those_that_cost_little(accuracies, wanted) -> None:
    names = ("bcos-on", "bcos-energy-1", "bcos-energy-3", "bcos-energy-10", "bcos-energy-3-1%", "bcos-energy-1-last")
    values = zip(names, (0.6, *accuracies, 0.9, 0.9), (0.1, 0.2, 0.3, 0.4, 0.9, 0.9), strict=True)
    known = pd.DataFrame([{"condition": name, "correct": right, "epg_sides": epg} for name, right, epg in values])
    assert weights_chosen(known, swept(), "epg_{}") == {("bcos-on", "energy"): f"bcos-energy-{wanted}"}
