"""`heatlas check --network`: the convention that a network was trained with is found, and bad files are refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import heatlas
from heatlas.atlases.spaces import Grid, Placed, template_grid
from heatlas.pipeline.models.families.foreign import Feeding
from heatlas.pipeline.models.foreign.described import DESCRIPTIONS, read_description
from heatlas.pipeline.models.foreign.feeding import conventions, fed, scaled
from heatlas.pipeline.models.inputs import configured_input, from_network, to_network
from heatlas.pipeline.models.storage import _input_from_json, _input_to_json
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.statistics.performance.conventions import AUC, MAE, conventions_table, losses, verdict
from heatlas.workflows.command_line import main

IMAGE = Grid((20, 24, 18), np.array([[-2.0, 0, 0, 20], [0, 2, 0, -20], [0, 0, 2, -10], [0, 0, 0, 1]]))
NETS = """
from torch import nn
def net(shape, outputs=1):
    sides = [side // 4 for side in shape]
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2), nn.Conv3d(4, 4, 3, padding=1), nn.ReLU(),
        nn.AvgPool3d(2), nn.Flatten(), nn.Linear(4 * sides[0] * sides[1] * sides[2], outputs),
    )
"""


# Pure functions


def test_a_cut_mirrored_image_is_the_block_of_its_voxels_and_a_squeezed_one_their_means():
    values = np.random.default_rng(0).random(IMAGE.shape).astype(np.float32) + 1
    cut = Feeding((10, 12, 8), "none", spacing_mm=(2.0, 2.0, 2.0))
    seen, grid = fed(values, IMAGE, cut)
    np.testing.assert_array_equal(seen[0], values[5:15, 6:18, 5:13][::-1])  # the image is LAS, the network RAS
    assert grid.orientation == "RAS"
    seen, _ = fed(values, IMAGE, dataclasses.replace(cut, orientation="SAL", grid=(8, 12, 10), channels=3))
    np.testing.assert_array_equal(seen, np.repeat(values[None, 5:15, 6:18, 5:13].transpose(0, 3, 2, 1), 3, axis=0))
    seen, _ = fed(values, IMAGE, Feeding((10, 12, 9), "none", orientation="LAS"))
    means = values.reshape(10, 2, 12, 2, 9, 2).mean((1, 3, 5))
    np.testing.assert_allclose(seen[0], means, rtol=1e-5)  # single precision
    seen, _ = fed(values, IMAGE, Feeding((2, 2, 2), "none", spacing_mm=(2.0, 2.0, 2.0), middle_mm=(13.0, -15.0, -3.0)))
    assert seen[0, 0, 0, 0] == values[4, 2, 3]
    assert seen[0, 1, 0, 0] == values[3, 2, 3]


@pytest.mark.parametrize(
    ("scaling", "ends", "wanted"),
    [("minmax", (), [0, 0.2, 0.6, 1]), ("none", (), [0, 1, 3, 5]), ("fixed", (1, 3), [-0.5, 0, 1, 2]),
     ("percentiles", (0, 50), [0, 0, 1, 1]), ("zscore-brain", (), [0, *((np.array([1, 3, 5]) - 3) / np.sqrt(8 / 3))]),
     ("zscore", (), (np.array([0, 1, 3, 5]) - 2.25) / np.std([0, 1, 3, 5]))],
)  # fmt: skip
def test_intensities_are_scaled_as_the_contract_says(scaling, ends, wanted):
    values = np.array([0.0, 1.0, 3.0, 5.0])
    np.testing.assert_allclose(scaled(values, Feeding(scaling=scaling, scaling_ends=ends)), wanted, rtol=1e-6)
    np.testing.assert_allclose(  # a changed copy on the scale of its original
        scaled(values * 2, Feeding(scaling=scaling, scaling_ends=ends), like=values * 2),
        scaled(values * 2, Feeding(scaling=scaling, scaling_ends=ends)), rtol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("sides", [(10, 12, 9), (7, 5, 9), (40, 48, 36)])
def test_a_map_comes_back_with_its_sum_and_each_region_with_its_own(sides):
    grid = Grid(sides, IMAGE.affine @ np.diag([20 / sides[0], 24 / sides[1], 18 / sides[2], 1]))
    moved = grid.affine.copy()
    moved[:3, 3] = IMAGE.to_world((np.array([20, 24, 18]) / np.array(sides) - 1) / 2)
    placed = Placed.on(Grid(sides, moved), IMAGE)
    values = np.random.default_rng(1).normal(size=(2, *sides))
    pasted = placed.paste(values, IMAGE.shape)
    np.testing.assert_allclose(pasted.sum((1, 2, 3)), values.sum((1, 2, 3)), rtol=1e-9)
    half = np.arange(sides[0]) < sides[0] / 2 - 0.5
    lost = np.abs(pasted[:, :10].sum((1, 2, 3)) - values[:, half].sum((1, 2, 3))).max()
    assert sides[0] % 2 or lost < 1e-9


def test_at_least_twelve_conventions_begin_with_the_declared_one_and_none_comes_twice():
    found = conventions(Feeding((10, 12, 8), "zscore", spacing_mm=(2.0, 2.0, 2.0)), IMAGE)
    assert (found[0].name, len(found) >= 12) == ("as declared", True)
    values = np.random.default_rng(2).random(IMAGE.shape).astype(np.float32)
    values[:7] = 0  # else there is no brain beside the image
    seen = [fed(values, IMAGE, one.feeding)[0] for one in found]
    assert not any(np.array_equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
    mirrored = next(one for one in found if one.changes == ("mirrored left to right",))
    np.testing.assert_array_equal(fed(values, IMAGE, mirrored.feeding)[0][0], seen[0][0][::-1])


def test_losses_of_classes_add_up_to_the_area_and_a_better_convention_is_named_only_if_clear():
    random = np.random.default_rng(3)
    truth, answers = np.repeat([0.0, 1.0], [5, 7]), random.normal(size=(3, 12)).round(1)
    pairs = (answers[:, None, truth == 1] > answers[:, truth == 0][:, :, None]) + 0.5 * (
        answers[:, None, truth == 1] == answers[:, truth == 0][:, :, None]
    )
    np.testing.assert_allclose(1 - losses(answers, truth, AUC).mean(axis=0), pairs.mean((1, 2)))
    ages = random.uniform(20, 80, 12)
    wrong, right = 200 + random.normal(0, 5, 12), ages + random.normal(0, 4, 12)
    names = ["as declared", "mirrored left to right"]
    table = conventions_table(names, np.stack([wrong, right]), ages, MAE, 43)
    assert verdict(table).startswith("another convention is clearly better: mirrored left to right")
    assert table["convention"].tolist() == ["mirrored left to right", "mean of the others", "as declared"]
    assert table["estimate"][0] == pytest.approx(np.abs(right - ages).mean())
    table = conventions_table(names, np.stack([right, wrong]), ages, MAE, 43)
    assert verdict(table).startswith("fed as it was trained")
    table = conventions_table(names, np.stack([wrong, wrong[::-1]]), ages, MAE, 43)
    assert verdict(table).startswith("cannot be told apart")
    table = conventions_table(names, np.stack([right, np.full(12, np.nan)]), ages, MAE, 43)
    assert table["convention"].tolist()[-1] == "mirrored left to right"


def test_a_run_sees_the_grid_of_the_contract_and_refuses_what_contradicts_it():
    model = {"architecture": "foreign", "network": "a:b", "grid": [20, 24, 22], "spacing_mm": [4.0, 4.0, 4.0],
             "orientation": "LAS", "scaling": "zscore-brain", "space": "MNI152NLin2009cAsym"}  # fmt: skip
    spec = configured_input(load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": model}))
    whole = template_grid(4.0)
    volume = np.random.default_rng(4).random(whole.shape).astype(np.float32)
    seen = to_network(volume, np.ones(whole.shape, bool), spec)
    wanted = volume[
        tuple(slice((a - b) // 2, (a - b) // 2 + b) for a, b in zip(whole.shape, (20, 24, 22), strict=True))
    ]
    np.testing.assert_allclose(seen, ((wanted - wanted.mean()) / wanted.std())[::-1], atol=1e-4)  # single precision
    back = from_network(seen, spec)
    assert back.sum() == pytest.approx(seen.sum(), abs=1e-2)
    assert _input_from_json(_input_to_json(spec)) == spec
    for changed, said in (
        ({"space": "MNI152NLin6Asym"}, "model.space is MNI152NLin6Asym"), ({"head": True}, "model.head"),
        ({"registered": "rigid"}, "model.registered is rigid"),
        ({"spacing_mm": [2.0, 2.0, 2.0]}, "the network saw voxels of 2 mm"),
    ):  # fmt: skip
        config = load_config(overrides={"registration": {"resolution_mm": 4.0}, "model": model | changed})
        with pytest.raises(UsageError, match=said):
            configured_input(config)


def test_descriptions_of_public_networks_are_read_and_cite_file_and_commit():
    files = sorted(DESCRIPTIONS.glob("*.toml"))
    assert len(files) == 8
    for file in files:
        published = read_description(file).published
        assert published.sources, file
        assert all(re.match(r"[\w-]+/[\w.-]+@[0-9a-f]{40}:\S+: ", one) for one in published.sources), file


# Whole commands


def people(folder: Path, count: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Heads of any gain: a blob on the left grows with age, one on the right with nothing; a low one is of women."""
    random = np.random.default_rng(seed)
    x, y, z = np.moveaxis(IMAGE.to_world(np.moveaxis(np.indices(IMAGE.shape), 0, -1)), -1, 0)
    brain = (x / 17) ** 2 + ((y - 3) / 21) ** 2 + ((z - 7) / 15) ** 2 < 1
    ages, women, images = random.uniform(20, 80, count), random.permutation(count) % 2, []
    rows = ["participant_id,path,age,sex"]
    for number in range(count):
        values = 1 + 0.05 * random.normal(size=IMAGE.shape)
        for middle, height in (((-8, 4, 8), ages[number] / 40), ((8, 4, 8), random.uniform(0.5, 2)),
                               ((-2, -8, 0), 0.5 + women[number])):  # fmt: skip
            near = sum((axis - m) ** 2 for axis, m in zip((x, y, z), middle, strict=True))
            values += height * np.exp(-near / 30)
        images.append((values * brain * random.uniform(50, 400)).astype(np.float32))
        nib.save(nib.Nifti1Image(images[-1], IMAGE.affine), folder / f"p{number}.nii.gz")
        rows.append(f"p{number},p{number}.nii.gz,{ages[number]:.1f},{'F' if women[number] else 'M'}")
    (folder / "people.csv").write_text("\n".join(rows) + "\n")
    return ages, images


DESCRIBED = """[model]
architecture = "foreign"
network = "nets.py:net"
weights = "w.safetensors"
grid = [8, 8, 8]
scaling = "{scaling}"
{more}"""


def trained(folder: Path, feeding: Feeding) -> Path:
    """A network trained with a contract, as a plain script would do it, and its description file."""
    (folder / "nets.py").write_text(NETS)
    space: dict[str, Any] = {}
    exec(NETS, space)
    torch.manual_seed(0)
    (folder / "train").mkdir()
    ages, images = people(folder / "train", 120, 1)
    x = torch.from_numpy(np.stack([fed(one, IMAGE, feeding)[0] for one in images]))
    y = torch.from_numpy((ages - 50) / 20).float()
    network: nn.Module = space["net"](feeding.grid)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(40):
        for part in torch.randperm(len(x)).split(20):
            optimiser.zero_grad()
            nn.functional.mse_loss(network(x[part])[:, 0], y[part]).backward()
            optimiser.step()
    with torch.no_grad():
        network[-1].weight *= 20
        network[-1].bias.mul_(20).add_(50)
    safetensors.torch.save_file(network.state_dict(), folder / "w.safetensors")
    file = folder / "network.toml"
    more = f'spacing_mm = {list(feeding.spacing_mm)}\norientation = "{feeding.orientation}"\n'
    more += f"arguments = '{{\"shape\": {list(feeding.grid)}}}'\n"
    more += '[published]\ntarget = "age"\nmeasure = "mae"\nestimate = 3.9\non = "people"\n'
    file.write_text(DESCRIBED.format(scaling=feeding.scaling, more=more).replace("[8, 8, 8]", str(list(feeding.grid))))
    return file


CUT = Feeding((12, 16, 12), "zscore-brain", spacing_mm=(2.0, 2.0, 2.0), orientation="LAS")
SQUEEZED = Feeding((12, 12, 12), "minmax")


@pytest.mark.ci
@pytest.mark.parametrize("feeding", [CUT, SQUEEZED])
def test_the_convention_of_training_is_found_first_and_a_wrong_declaration_is_told(tmp_path, capsys, feeding):
    file, scans = trained(tmp_path, feeding), tmp_path / "scans"
    scans.mkdir()
    people(scans, 16, 2)
    command = ["check", str(scans), "--network", str(file), "--table", str(scans / "people.csv")]
    for _ in range(2):  # may be written again
        assert main([*command, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    table = read_table(tmp_path / "out" / "conventions.tsv")
    assert len(table) > 12
    assert table["kind"][0] == "declared"
    assert said.splitlines()[-2].startswith("verdict: fed as it was trained")
    assert "published: MAE 3.9 (people)" in said

    right = "z-scores of the brain, mirrored left to right" if feeding is CUT else "scaled by minimum and maximum"
    file.write_text(file.read_text().replace('"LAS"', '"RAS"').replace(f'"{feeding.scaling}"', '"none"'))
    assert main(command) == 0
    first, *_, last = capsys.readouterr().out.splitlines()[1:]
    assert first.split("]")[1].split("  p = ")[0].strip() == right
    assert last.startswith(f"verdict: another convention is clearly better: {right} (")


def test_classes_are_told_by_the_area_and_bad_input_is_refused_in_a_line_of_65(tmp_path, capsys):
    (tmp_path / "nets.py").write_text(NETS)
    space: dict[str, Any] = {}
    exec(NETS, space)
    safetensors.torch.save_file(space["net"]((8, 8, 8)).state_dict(), tmp_path / "w.safetensors")
    text = (
        '[model]\narchitecture = "foreign"\nnetwork = "nets.py:net"\nweights = "w.safetensors"\ngrid = [8, 8, 8]\n'
        'scaling = "minmax"\narguments = \'{"shape": [8, 8, 8]}\'\n[published]\ntarget = "age"\n'
    )
    people(tmp_path, 6, 5)
    file, table = tmp_path / "network.toml", str(tmp_path / "people.csv")
    command = ["check", str(tmp_path), "--network", str(file), "--table", table]
    file.write_text(text)
    assert main([*command, "--contrast", "sex=M,F"]) == 0
    assert capsys.readouterr().out.startswith("area under the curve of sex, 6 people")

    def refused(changed: str, *more: str) -> str:
        file.write_text(changed)
        assert main([*command, *more]) == 65
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        return said.err

    assert "unknown setting model.scalling. Did you mean model.scaling?" in refused(text.replace("scaling", "scalling"))
    assert "unknown setting published.targets. Did you mean published.target?" in refused(
        text.replace("target", "targets")
    )
    assert "has no input contract" in refused(text.replace('grid = [8, 8, 8]\nscaling = "minmax"\n', ""))
    assert "another shape: 7.weight (1, 32), not (1, 4)" in refused(text.replace("[8, 8, 8]}", "[4, 4, 4]}"))
    assert "heights" in refused(text, "--target", "heights")
    assert "model.weights is empty" in refused(text.replace("w.safetensors", ""))
    assert "goes with model.scaling" in refused(text.replace('scaling = "minmax"\n', ""))
    assert "model.orientation" in refused(text.replace("[published]", 'orientation = "RAX"\n[published]'))
    nib.save(nib.Nifti1Image(np.ones((4, 4, 4, 3), np.float32), IMAGE.affine), tmp_path / "p0.nii.gz")
    file.write_text(text)
    assert main(command) == 0  # the other people are asked
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("left out: p0.nii.gz: 4D image")
    assert said[1].startswith("mean absolute error of age, 5 people")


def test_a_map_by_contract_lies_in_the_millimetres_of_the_image(tmp_path):
    file = DESCRIBED.format(scaling="zscore-brain", more='orientation = "SAL"\nspacing_mm = [2.0, 2.0, 2.0]\n')
    (tmp_path / "network.toml").write_text(file)
    people(tmp_path, 2, 6)
    image, control = (nib.load(tmp_path / f"p{number}.nii.gz") for number in (0, 1))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    feeding = Feeding((8, 8, 8), "zscore-brain", spacing_mm=(2.0, 2.0, 2.0), orientation="SAL")
    seen = [fed(one.get_fdata(), IMAGE, feeding) for one in (image, control)]
    arrays = [torch.from_numpy(values) for values, _ in seen]
    wanted = heatlas.explain(network, arrays[0], "deeplift", reference=[arrays[1]], target=1)
    found = heatlas.explain(
        network, image, "deeplift", reference=[control], target=1, contract=tmp_path / "network.toml"
    )
    np.testing.assert_allclose(found.map.get_fdata(), wanted.map.get_fdata(), atol=1e-6)  # single precision
    np.testing.assert_allclose(found.map.affine, seen[0][1].affine)
    with pytest.warns(UserWarning, match="nothing says how it was fed"):
        heatlas.explain(network, image, "gradient")
    with pytest.raises(BadInputError, match="an input contract places it by that"):
        heatlas.explain(network, arrays[0], "gradient", contract=tmp_path / "network.toml")
