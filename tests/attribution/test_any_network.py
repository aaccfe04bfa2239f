"""``heatlas.explain``: any network, any image."""

from __future__ import annotations

import doctest
import gzip
import json
import re
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import heatlas
from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import template_grid
from heatlas.pipeline.attribution.cam.weighted_maps import GradCam
from heatlas.pipeline.attribution.entry import RunContext
from heatlas.pipeline.attribution.gradient.gradients import InputTimesGradient
from heatlas.pipeline.attribution.graph.planner import plan_relevance
from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.explaining.scan_jobs import explanations_of_run
from heatlas.pipeline.models.families.registry import FAMILIES, build_network
from heatlas.pipeline.models.foreign.adapted import adapted
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.errors import BadInputError, UsageError

GRID = template_grid(8.0)


class Residual(nn.Module):
    """Works in place, has a skip connection, and answers with probabilities in a dict."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Conv3d(1, 3, 3, 2), nn.Conv3d(3, 3, 3, padding=1), nn.Linear(3, 2)
        self.relu = nn.ReLU(inplace=True)

    def logits(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.block(x) + x)
        return self.head(x.mean((2, 3, 4)))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"probabilities": torch.softmax(self.logits(x), 1), "volume": x}


def image(seed: int) -> nib.nifti1.Nifti1Image:
    values = np.random.default_rng(seed).random(GRID.shape).astype(np.float32)
    made = nib.nifti1.Nifti1Image(values, GRID.affine)
    made.set_sform(GRID.affine, 4)
    return made


def test_a_map_lies_on_the_grid_of_the_image_and_adds_up():
    network, person, controls = Residual(), image(1), [image(2), image(3)]
    found = heatlas.explain(
        network, person, "deeplift", target=1, reference=controls, output_item="probabilities",
    )  # fmt: skip
    volumes = [torch.from_numpy(one.get_fdata(dtype=np.float32))[None, None] for one in (person, *controls)]
    with torch.no_grad():
        evidence = [float(z[1] - z[0]) for z in (network.eval().logits(v)[0] for v in volumes)]
        of_mean = network.logits((volumes[1] + volumes[2]) / 2)[0]
    assert found.value == pytest.approx(evidence[0], abs=1e-5)
    assert found.reference_value == pytest.approx(float(of_mean[1] - of_mean[0]), abs=1e-5)
    assert found.missing == pytest.approx(0, abs=1e-5)
    np.testing.assert_array_equal(found.map.affine, GRID.affine)
    assert float(np.asarray(found.map.dataobj).sum(dtype=np.float64)) == pytest.approx(
        found.value - found.reference_value, abs=1e-5
    )


def test_regions_are_sums_of_the_map_over_the_labels():
    found = heatlas.explain(Residual(), image(1), "input-x-gradient", output_item="probabilities")
    table = found.regions().set_index("region")
    values, labels = np.asarray(found.map.dataobj), load_atlas("neuromorphometrics-cat12", GRID).labels
    for region in (48, 47, 45):
        assert table.loc[region, "sum"] == pytest.approx(values[labels == region].sum(dtype=np.float64), abs=1e-9)
        assert table.loc[region, "n_voxels"] == (labels == region).sum()
    assert table["sum"].sum() == pytest.approx(values.sum(dtype=np.float64), abs=1e-6)
    rest, regions = table.loc[0], table.drop(index=0)
    assert (rest["name"], table.index[-1]) == ("unlabelled rest", 0), "what has no name is last"
    assert regions["density"].abs().dropna().is_monotonic_decreasing, "the largest effect comes first"
    assert list(found.regions().columns[:2]) == ["name", "hemisphere"]
    with pytest.raises(UsageError, match="Give an image"):
        heatlas.explain(Residual(), image(1).get_fdata(), "gradient", output_item="probabilities").regions()


def test_regions_of_a_map_of_another_program_are_its_sums_on_any_grid(tmp_path):
    found = heatlas.explain(Residual(), image(1), "gradient", output_item="probabilities")
    nib.save(found.map, tmp_path / "map.nii.gz")
    pd.testing.assert_frame_equal(heatlas.regions(tmp_path / "map.nii.gz"), found.regions())
    mirrored = found.map.as_reoriented(np.array([[0, -1], [2, 1], [1, 1]]))  # to the left, upwards, to the front
    table, turned = (heatlas.regions(one).set_index("region").sort_index() for one in (found.map, mirrored))
    np.testing.assert_allclose(turned["sum"], table["sum"], atol=1e-7)
    assert table["sum"].sum() == pytest.approx(float(np.asarray(found.map.dataobj).sum(dtype=np.float64)), abs=1e-6)


def test_what_is_no_map_in_template_space_has_no_regions():
    several = nib.Nifti1Image(np.zeros((*GRID.shape, 3), np.float32), GRID.affine)
    several.set_sform(GRID.affine, 4)
    with pytest.raises(BadInputError, match=r"the map has 3 volumes; give one, as map\.slicer"):
        heatlas.regions(several)
    with pytest.raises(UsageError, match="Give an image"):
        heatlas.regions(np.zeros(GRID.shape))
    with pytest.raises(BadInputError, match="not finite"):
        heatlas.regions(nib.Nifti1Image(np.full(GRID.shape, np.nan, np.float32), GRID.affine))


def turned() -> nn.Module:
    """A network whose output 1 has a negative logit."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 3, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        network[-1].weight[1], network[-1].bias[1] = 1.0, -9.0
    return network


def test_a_map_of_a_negative_logit_warns_and_begins_with_what_speaks_for_the_output():
    with pytest.warns(UserWarning, match=r"lrp: the logit of output 1 is -.*map is turned.*reference=\[control\]"):
        found = heatlas.explain(turned(), image(1), "lrp", target=1)
    table = found.regions()
    assert found.value < 0
    assert float(np.asarray(found.map.dataobj).max()) <= 0
    assert table["name"].iloc[-1] == "unlabelled rest"
    assert table["density"].iloc[:-1].dropna().is_monotonic_increasing, "the most negative speaks most for the output"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*nothing says how it was fed")
        heatlas.explain(turned(), image(1), target=1, reference=[image(2)])


def test_what_was_found_prints_itself_in_three_lines_without_numbers_of_voxels():
    found = heatlas.explain(Residual(), image(1), "lrp", target=1, output_item="probabilities")
    size = " x ".join(map(str, GRID.shape))
    assert repr(found).splitlines() == [
        f"LRP map of output 1: {size} voxels in template space",
        f"logit {found.value:.3g}; the map adds up to it but for {abs(found.missing):.1g}",
        'next: .map, .regions(), .plot(), .save("FOLDER")',
    ]
    page = found._repr_html_()
    assert page.count("<tr") == 11, "a row of names and ten regions"
    assert f"<td>{found.regions()['name'][0]}</td>" in page
    assert ".save(&quot;FOLDER&quot;)" in page, "text is escaped"
    array = heatlas.explain(Residual(), np.ones((20, 20, 20)), "grad-cam", target=1, output_item="probabilities")
    assert repr(array).splitlines()[0].endswith("20 x 20 x 20 voxels in no space")
    assert "need not add up" in repr(array)
    assert "regions" not in repr(array) + array._repr_html_()
    assert all("tensor" not in text for text in (repr(found), page, repr(array)))


def test_a_picture_shows_the_strongest_tenth_of_the_smoothed_map_on_the_template(tmp_path):
    from matplotlib.text import Text
    from nilearn.image import smooth_img

    found = heatlas.explain(Residual(), image(1), "input-x-gradient", target=0, output_item="probabilities")
    smooth = np.abs(smooth_img(found.map, 8.0).get_fdata()[np.asarray(found.map.dataobj) != 0])
    asked = {}
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("nilearn.plotting.plot_stat_map", lambda shown, **options: asked.update(options, shown=shown))
        changed.setattr("heatlas.pipeline.explaining.explained_image._titled", lambda display, *_: display)
        found.plot()
    np.testing.assert_allclose([asked["threshold"], asked["vmax"]], np.percentile(smooth, [90, 99.5]), rtol=1e-5)
    np.testing.assert_allclose(asked["shown"].get_fdata(), smooth_img(found.map, 8.0).get_fdata())
    assert asked["bg_img"].affine[0, 0] == 1.0, "the template at 1 mm, whatever the grid of the map"
    display = found.plot(smooth=0, display_mode="z", cut_coords=[0])
    texts = [text.get_text() for text in display.frame_axes.figure.findobj(Text)]
    assert "Input × gradient, output 0: relative strength" in texts, "not smoothed, and no unit"
    display.close()
    array = heatlas.explain(Residual(), np.ones((20, 20, 20)), "grad-cam", target=1, output_item="probabilities")
    array.plot(output_file=tmp_path / "map.png", title="mine")
    assert (tmp_path / "map.png").stat().st_size > 1000
    with pytest.raises(UsageError, match="smooth = -1: must be millimetres"):
        found.plot(smooth=-1)


class Undecided(Residual):
    """Its operations depend on what it sees."""

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x) if x.sum() > 0 else self.logits(-x)


def test_a_network_that_cannot_be_traced_is_told_what_works():
    call = r"cannot be traced .* heatlas.explain\(network, image, \"expected-gradients\", reference=\[control\]\)"
    with pytest.raises(UsageError, match=call):
        heatlas.explain(Undecided(), image(1), "lrp")
    found = heatlas.explain(Undecided(), image(1), "expected-gradients", reference=[image(2)], settings={"alphas": 2})
    assert found.missing == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("method", "settings", "passes"),
    [
        ("guided-backpropagation", {}, "1 pass"),
        ("occlusion", {"size": 16, "stride": 16, "batch": 1}, f"{2 + 2 * 2 * 2} passes"),  # two of the image as it is
    ],
)
def test_passes_of_long_work_are_counted_in_one_line(monkeypatch, capsys, method, settings, passes):
    monkeypatch.setattr("heatlas.pipeline.explaining.any_network._SECONDS_UNTIL_COUNTED", 0.0)
    heatlas.explain(Residual(), image(1), method, output_item="probabilities", settings=settings)
    assert re.fullmatch(rf"{method}: {passes} of the network in \d+ s\n", capsys.readouterr().err)


def test_what_is_saved_is_what_was_found(tmp_path):
    found = heatlas.explain(Residual(), image(1), "lrp", target=1, output_item="probabilities")
    found.save(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert {path.name for path in folder.iterdir()} == {"map.nii.gz", "explained.json", "regions.tsv", "ledger.tsv"}
    written = nib.load(folder / "map.nii.gz")
    np.testing.assert_array_equal(np.asarray(written.dataobj), np.asarray(found.map.dataobj))
    np.testing.assert_array_equal(written.affine, GRID.affine)
    regions = pd.read_csv(folder / "regions.tsv", sep="\t", na_values="n/a")
    pd.testing.assert_series_equal(regions["sum"], found.regions()["sum"])
    numbers = json.loads((folder / "explained.json").read_text())
    assert (numbers["method"], numbers["target"], numbers["value"]) == ("lrp", 1, found.value)
    assert numbers["settings"] == dict(found.attribution.parameters)
    with pytest.raises(UsageError, match="folder: holds an explained image already"):
        found.save(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        found.save(tmp_path / "file")


def test_of_an_image_in_no_space_the_maps_of_channels_are_saved_and_no_regions(tmp_path):
    network = nn.Sequential(nn.Conv3d(2, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    found = heatlas.explain(network, torch.rand(2, 5, 6, 7), "input-x-gradient")
    found.save(tmp_path)
    names = {"map.nii.gz", "channel-0.nii.gz", "channel-1.nii.gz", "explained.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    second = np.asarray(nib.load(tmp_path / "channel-1.nii.gz").dataobj)
    np.testing.assert_array_equal(second, np.asarray(found.channels[1].dataobj))


def test_a_layer_is_named_as_in_the_network_and_the_last_one_is_found():
    network, person = Residual(), image(1)
    asked = {"target": 1, "output_item": "probabilities"}
    found = heatlas.explain(network, person, "grad-cam", **asked)
    at_sum = heatlas.explain(network, person, "grad-cam", stage="relu", **asked)  # its last call, after the sum
    np.testing.assert_array_equal(found.map.dataobj, at_sum.map.dataobj)
    features = network.eval().relu(network.stem(torch.from_numpy(person.get_fdata(dtype=np.float32))[None, None]))
    features = (features + network.block(features)).relu()
    by_hand = (network.head.weight[1][:, None, None, None] / features[0, 0].numel() * features[0]).sum(0).relu()
    answer = heatlas.explain(network, person, "hires-cam", **asked).attribution
    assert float(by_hand.sum()) > 0
    centre = np.asarray(found.map.dataobj)[
        1 : 2 * by_hand.shape[0] : 2, 1 : 2 * by_hand.shape[1] : 2, 1 : 2 * by_hand.shape[2] : 2
    ]
    np.testing.assert_allclose(centre, by_hand.detach().numpy(), rtol=1e-4, atol=1e-7)
    assert answer.values.shape[2:] == GRID.shape
    with pytest.raises(UsageError, match="a connection passes this layer by"):
        heatlas.explain(network, person, "grad-cam", stage="block", **asked)


def test_a_network_of_a_family_is_explained_as_in_a_run():
    settings = NETWORKS["resnet10"]("resnet10", width=0.125)
    torch.manual_seed(1)
    network = build_network(settings, (34, 37, 35), 2).eval()
    volume = torch.rand((34, 37, 35), generator=torch.Generator().manual_seed(2))
    for method, record in (("input-x-gradient", InputTimesGradient()), ("grad-cam", GradCam())):
        found = heatlas.explain(network, volume, method, target=1)
        stage = 0 if method == "input-x-gradient" else found.attribution.parameters["stage"]
        wanted = attribute(network, volume[None, None], 1, record, stage)
        np.testing.assert_allclose(found.map.dataobj, wanted.values[0, 0].numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "deep-lift"}, "method deep-lift: unknown. Did you mean deeplift?"),
        ({"method": "GradCAM"}, "Did you mean grad-cam?"),
        ({"method": "shap"}, "Did you mean region-shapley?"),
        ({"method": "deeplift"}, "or name a method that needs none, as 'lrp'"),
        ({}, r"give images of controls as reference=\[control\]"),
        ({"method": "gradient", "target": 2}, "target 2 does not exist"),
        ({"method": "gradient", "stage": "layer4"}, "no such layer"),
        ({"method": "gradient", "settings": {"samples": 3}}, "has no setting 'samples'"),
        ({"method": "gradient", "output_item": ""}, "say which is the answer"),
        ({"method": "deeplift", "reference": [np.zeros((4, 4, 4))]}, "reference 1: lies on another grid"),
        ({"method": "rollout"}, "attention"),
        ({"method": "gradient", "target": 1.0}, "must be the number of an output unit"),
        ({"method": "gradient", "target": True}, "must be the number of an output unit"),
        ({"method": "gradient", "target": "1"}, "must be the number of an output unit"),
        ({"method": "deeplift", "reference": "control.nii.gz"}, "must be a list of images of controls"),
        ({"method": "deeplift", "reference": np.zeros(GRID.shape)}, "must be a list of images of controls"),
        ({"method": "deeplift", "reference": [np.full(GRID.shape, np.nan)]}, "reference 1: .* not finite"),
        ({"method": "gradient", "others": "71"}, "give a list of inputs"),
        ({"method": "gradient", "others": ["old"]}, r"others\[0\]: no number"),
        ({"method": "gradient", "others": [np.zeros((2, 1))]}, "its first axis is the batch"),
        ({"method": "gradient", "others": [71]}, "does not take a volume"),
        ({"method": ["gradient"]}, r"method = \['gradient'\]: must be a name"),
        ({"method": "lrp", "stage": 1.5}, "stage = 1.5: must be the number of a stage or the name of a layer"),
        ({"method": "lrp", "stage": True}, "stage = true: must be"),
        ({"method": "lrp", "start": ""}, "start = '': must be one of 'logit', 'probability', 'evidence'"),
        ({"method": "lrp", "settings": "beta=1"}, "settings = 'beta=1': must be settings by name"),
        ({"method": "lrp", "settings": {"beta": -1}}, "beta = -1: must .*0 or more"),
        ({"method": "lrp", "settings": {"beta": [0, 1]}}, "lrp makes 2 maps"),
        ({"method": "smoothgrad", "settings": {"samples": "4"}}, "samples = '4': must be a whole number"),
        ({"method": "deeplift", "reference": 3}, "reference = 3: must be a list of images of controls"),
        ({"method": "deeplift", "reference": [[np.zeros(GRID.shape)]]}, "must be a list of images of controls"),
        ({"method": "lrp", "output": "Softmax"}, "output = 'Softmax': must be one of 'auto'"),
        ({"method": "lrp", "bins": "12"}, "bins = '12': must be a list of numbers"),
    ],
)
def test_what_cannot_be_done_is_said(settings, message):
    with pytest.raises((UsageError, BadInputError), match=message):
        heatlas.explain(Residual(), image(1), **{"output_item": "probabilities", **settings})


def test_images_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "scan.nii").write_text("no image")
    with pytest.raises(BadInputError, match=r"scan\.nii: no image that can be read"):
        heatlas.explain(Residual(), tmp_path / "scan.nii", "gradient")
    with pytest.raises(BadInputError, match="has 2 axes"):
        heatlas.explain(Residual(), np.zeros((4, 4)), "gradient")


@pytest.mark.parametrize(
    ("network", "given", "message"),
    [
        (None, None, "network = None: must be a torch.nn.Module that holds its weights"),
        ("net.pt", None, "net.pt'?: (explains a scan by its path|must be a torch.nn.Module)"),
        (Residual, None, "network = <class .*Residual'>: must be a torch.nn.Module"),
        (lambda x: x, None, "network = <function .*: must be a torch.nn.Module"),
        (nn.Identity(), 3, "image = 3: must be the path of an image"),
        (nn.Identity(), [[[0.0]]], r"image = \[\[\[0.0\]\]\]: must be the path of an image"),
        (nn.Identity(), torch.ones(4, 4, 4).to_sparse(), "image: is a sparse, quantised"),
        (nn.Identity(), np.ma.masked_less(np.eye(4)[None], 0.5), "image: 12 of its values are masked"),
        (nn.Identity(), np.full((1, 4, 4), 2**24 + 1), "holds whole numbers beyond 16,777,216"),
    ],
)
def test_networks_and_images_that_are_none_are_refused_in_one_line(network, given, message):
    given = np.zeros((4, 4, 4)) if given is None else given
    for function in (lambda: heatlas.explain(network, given, "gradient"), lambda: heatlas.prepare(network, given)):
        with pytest.raises((UsageError, BadInputError), match=message) as caught:
            function()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["gradient", "deeplift", "lrp", "expected-gradients"])
def test_modes_of_the_caller_change_no_map(method):
    network, volume, control = WithAge().eval().requires_grad_(False), torch.rand(8, 9, 10), torch.rand(8, 9, 10)
    asked = {"method": method, "reference": [control], "others": (71,)}
    wanted = heatlas.explain(network, volume, **asked)
    modes = (torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    for mode in modes:
        with mode():
            found = heatlas.explain(network, volume, **asked)
        assert (found.value, found.target) == (wanted.value, wanted.target)
        np.testing.assert_array_equal(found.map.dataobj, wanted.map.dataobj)
    half = volume.bfloat16()
    np.testing.assert_array_equal(
        heatlas.explain(network, half, **asked).map.dataobj, heatlas.explain(network, half.float(), **asked).map.dataobj
    )


class NormFirst(nn.Module):
    """Batch normalisation before its convolution, as in a DenseNet, or after it; γ has both signs."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        norm, convolution = nn.BatchNorm3d(2), nn.Conv3d(2, 2, 3)
        norm.weight.data = torch.tensor([1.5, -0.5])
        parts = (nn.ReLU(), norm, nn.ReLU(), convolution) if first else (convolution, norm)
        self.all = nn.Sequential(
            nn.Conv3d(1, 2, 3), *parts, nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2)
        )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.all(x)


@pytest.mark.parametrize(("first", "done"), [(True, "identity"), (False, "fold")])
def test_lrp_of_the_library_folds_batch_normalisation_where_a_run_does(first, done, tmp_path):
    """The first call works, and the map is that of a run whose network is the same one of the user's own."""
    network, volume = NormFirst(first), torch.rand(8, 9, 10)
    found = heatlas.lrp(network, volume, target=1)
    assert found.attribution.parameters["batch_norm"] == done
    wanted = heatlas.lrp(network, volume, target=1, batch_norm=done)
    np.testing.assert_array_equal(found.map.dataobj, wanted.map.dataobj)
    config = load_config(overrides={"model": {"architecture": "foreign"}, "attribution": {"methods": ["lrp"]}})
    (asked,) = explanations_of_run(config)
    of_run = attribute(adapted(network, volume[None, None]), volume[None, None], 1, asked.build(RunContext(None, None)))
    np.testing.assert_array_equal(found.map.dataobj, of_run.values[0, 0])


@pytest.mark.parametrize("name", ["resnet10", "sfcn", "densenet121"])
def test_what_a_family_says_of_folding_is_what_its_networks_allow(name):
    network = build_network(NETWORKS[name](), (64, 64, 64), 2).eval()
    assert plan_relevance(network, "auto").batch_norm == FAMILIES[name].batch_norm("auto")


def test_what_lrp_loses_is_said_by_its_sum():
    """Units are 1 + x, and half of the voxels are air: 1 of each 3 parts of the output comes from biases in air."""
    network = nn.Sequential(nn.Conv3d(1, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(1, 1))
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), (1.0, 1.0, 1.0, 0.0), strict=True):
            parameter.fill_(value)
    volume = torch.zeros(4, 4, 4)
    volume[:2] = 1
    found = heatlas.lrp(network, volume)
    assert (found.value, found.missing) == (pytest.approx(1.5), pytest.approx(0.5))
    assert found.ledger["lost_no_contribution"].sum() == pytest.approx(0.5)


def test_a_map_that_is_zero_everywhere_is_said_with_its_reason():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    volume = torch.rand(8, 9, 10)
    with torch.no_grad():
        network[4].weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    with pytest.warns(UserWarning, match="grad-cam: the map is zero everywhere; it shows what raises the output alone"):
        heatlas.explain(network, volume, "grad-cam", bins=[50, 70], target=0)  # all that it sees makes the age smaller
    with pytest.warns(UserWarning, match="deeplift: the map is zero everywhere; the image and its reference are the"):
        heatlas.deeplift(network, volume, [volume])


def test_public_names_are_there():
    assert all(getattr(heatlas, name) is not None for name in heatlas.__all__)
    assert set(heatlas.methods()["method"]) >= {"lrp", "deeplift", "expected-gradients"}
    assert "resnet10" in set(heatlas.networks()["network"])


def test_a_reference_that_lies_elsewhere_is_refused_and_not_compared_voxel_by_voxel():
    mirrored = image(2)
    affine = GRID.affine.copy()
    affine[0] *= -1
    other = nib.nifti1.Nifti1Image(mirrored.get_fdata(dtype=np.float32)[::-1], affine)
    with pytest.raises(BadInputError, match="reference 1: lies on another grid"):
        heatlas.explain(Residual(), image(1), "deeplift", reference=[other], output_item="probabilities")


def test_values_of_the_image_are_checked_before_the_network_is_blamed():
    broken = image(1).get_fdata(dtype=np.float32)
    broken[0, 0, :3] = np.nan
    with pytest.raises(BadInputError, match="image: 3 of its values are not finite"):
        heatlas.explain(Residual(), broken, "gradient", output_item="probabilities")
    with pytest.raises(BadInputError, match="image: holds <U"):
        heatlas.explain(Residual(), np.full((4, 4, 4), "a"), "gradient", output_item="probabilities")


def test_bytes_in_another_order_are_the_same_image():
    values = image(1).get_fdata(dtype=np.float32)
    asked = {"method": "gradient", "output_item": "probabilities"}
    found, wanted = (heatlas.explain(Residual(), one, **asked) for one in (values.astype(">f4"), values))
    np.testing.assert_array_equal(found.map.dataobj, wanted.map.dataobj)


def test_a_header_without_a_space_gives_no_regions(tmp_path):
    lost = image(1)
    lost.set_sform(None, 0), lost.set_qform(None, 0)
    nib.save(lost, tmp_path / "lost.nii")
    found = heatlas.explain(Residual(), tmp_path / "lost.nii", "gradient", output_item="probabilities")
    with pytest.raises(UsageError, match="sform_code and qform_code in the header of the image are 0"):
        found.regions()
    with pytest.raises(UsageError, match="sform_code and qform_code"):
        heatlas.explain(Residual(), tmp_path / "lost.nii", "region-occlusion", output_item="probabilities")


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_regions_of_an_image_that_is_not_said_to_be_in_template_space_come_with_a_warning(code):
    head = image(1)
    head.set_sform(GRID.affine, code)
    found = heatlas.explain(Residual(), head, "gradient", output_item="probabilities")
    assert int(found.map.header["sform_code"]) == code
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found.regions()
    texts = [str(one.message) for one in said]
    assert any(f"not said to be in template space (NIfTI's code is {code}" in text for text in texts) == (code < 3)


def test_an_image_that_cannot_say_which_side_is_left_has_no_regions(tmp_path):
    nib.save(nib.analyze.AnalyzeImage(image(1).get_fdata(dtype=np.float32), GRID.affine), tmp_path / "old.img")
    found = heatlas.explain(Residual(), tmp_path / "old.img", "gradient", output_item="probabilities")
    with pytest.raises(UsageError, match=r"do not say which side is left\. Convert the image"):
        found.regions()
    nib.save(nib.freesurfer.MGHImage(image(1).get_fdata(dtype=np.float32), GRID.affine), tmp_path / "head.mgz")
    found = heatlas.explain(Residual(), tmp_path / "head.mgz", "gradient", output_item="probabilities")
    with pytest.warns(UserWarning, match="not said to be in template space"):
        found.regions()


def test_damaged_images_are_bad_input_before_they_fill_the_memory(tmp_path):
    for name in ("whole.nii", "whole.nii.gz"):
        nib.save(image(1), tmp_path / name)
        (tmp_path / f"cut_{name}").write_bytes((tmp_path / name).read_bytes()[:5000])
        vast = nib.Nifti1Header()
        vast.set_data_shape((30_000,) * 3), vast.set_data_dtype(np.uint8)
        vast["magic"], vast["vox_offset"] = b"n+1", 352
        opened = gzip.open if name.endswith(".gz") else open
        with opened(tmp_path / f"vast_{name}", "wb") as handle:
            handle.write(vast.binaryblock + bytes(5000))
        for bad, words in (("cut", "damaged or cut short"), ("vast", "its header announces 27000000000352 bytes")):
            path = tmp_path / f"{bad}_{name}"
            for given in (path, nib.load(path)):
                with pytest.raises(BadInputError, match=words):
                    heatlas.explain(Residual(), given, "gradient", output_item="probabilities")


def test_the_probability_of_a_single_output_is_refused_since_it_is_always_1():
    network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 1))
    with pytest.raises(UsageError, match="the softmax of one output is always 1"):
        heatlas.explain(network, image(1), "gradient", start="probability")


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv3d(1, 3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.unfold(2, 4, 4).unfold(3, 4, 4).unfold(4, 4, 4).reshape(-1, 1, 4, 4, 4)
        y = torch.relu(self.conv(y)).mean((2, 3, 4))
        return self.head(y.view(x.size(0), -1, 3).mean(1))


def test_a_layer_that_sees_patches_is_refused_and_the_network_explained():
    volume, control = torch.rand(8, 8, 8), torch.rand(8, 8, 8)
    assert abs(heatlas.explain(Patches(), volume, reference=[control]).missing) < 1e-5
    with pytest.raises(UsageError, match="its batch axis holds patches"):
        heatlas.explain(Patches(), volume, "grad-cam", stage="conv")


class WithAge(nn.Module):
    """Takes a scan and an age, of which the evidence is a product, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.conv, self.head = nn.Conv3d(1, 3, 3), nn.Linear(4, 2)

    def forward(self, scan: Tensor, age: Tensor) -> Tensor:
        features = torch.relu(self.conv(scan)).mean((2, 3, 4))
        return self.head(torch.cat([features, age / 100], 1))


@pytest.mark.parametrize("others", [(71,), {"age": torch.tensor([[71.0]])}, [np.array([[71.0]])]])
@pytest.mark.parametrize("method", ["expected-gradients", "deeplift", "input-x-gradient", "grad-cam"])
def test_other_inputs_are_held_fixed_and_said(method, others):
    network, volume, control = WithAge().eval(), torch.rand(8, 9, 10), torch.rand(8, 9, 10)
    found = heatlas.explain(network, volume, method, target=1, reference=[control], others=others)
    with torch.no_grad():
        value, of_control = (network(one[None, None], torch.tensor([[71.0]]))[0] for one in (volume, control))
    if found.reference_value is None:
        assert found.value == pytest.approx(float(value[1]), abs=1e-5)
    else:
        assert found.value == pytest.approx(float(value[1] - value[0]), abs=1e-5)
        assert found.reference_value == pytest.approx(float(of_control[1] - of_control[0]), abs=1e-5)
        assert found.missing == pytest.approx(0, abs=1e-5)
    assert [float(one) for one in found.others.values()] == [71.0]


def test_maps_of_several_channels_are_there_and_add_up():
    torch.manual_seed(2)
    network = nn.Sequential(
        nn.Conv3d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2)
    ).eval()
    volume, control = torch.rand(2, 8, 9, 10), torch.rand(2, 8, 9, 10)
    leaf = volume[None].clone().requires_grad_()
    network(leaf)[0, 1].backward()
    found = heatlas.explain(network, volume, "input-x-gradient", target=1)
    for one, wanted in zip(found.channels, (leaf * leaf.grad)[0].detach().numpy(), strict=True):
        np.testing.assert_allclose(one.dataobj, wanted, rtol=1e-4, atol=1e-8)
    for method in ("expected-gradients", "deeplift", "integrated-gradients-from-mean", "lrp", "guided-backpropagation"):
        found = heatlas.explain(network, volume, method, target=1, reference=[control])
        assert len(found.channels) == 2
        both = sum(np.asarray(one.dataobj) for one in found.channels)
        np.testing.assert_allclose(found.map.dataobj, both, rtol=1e-5, atol=1e-8)
    assert heatlas.explain(network, volume, "grad-cam", target=1).channels == ()
    file = nib.nifti1.Nifti1Image(np.moveaxis(volume.numpy(), 0, -1), np.eye(4))
    np.testing.assert_array_equal(
        heatlas.explain(network, file, "gradient").map.dataobj, heatlas.explain(network, volume, "gradient").map.dataobj
    )


def test_one_function_per_method_is_the_same_as_explain():
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Conv3d(1, 3, 3), nn.Tanh(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 2)
    ).eval()
    volume, controls = torch.rand(8, 9, 10), [torch.rand(8, 9, 10), torch.rand(8, 9, 10)]
    with pytest.warns(DeprecationWarning, match=r"use heatlas\.explain\(network, image, method=") as warned:
        same = [
            (heatlas.lrp(network, volume, beta=0.5, target=1), ("lrp", {"beta": 0.5}, {})),
            (
                heatlas.deeplift(network, volume, controls, compare="each", target=1),
                ("deeplift", {"compare": "each"}, {"reference": controls}),
            ),
            (
                heatlas.expected_gradients(network, volume, controls, alphas=3, target=1, settings={"batch": 2}),
                ("expected-gradients", {"alphas": 3, "batch": 2}, {"reference": controls}),
            ),
        ]
    assert [str(one.message).split()[0] for one in warned] == [
        "heatlas.lrp",
        "heatlas.deeplift",
        "heatlas.expected_gradients",
    ]
    for found, (method, settings, options) in same:
        wanted = heatlas.explain(network, volume, method, target=1, settings=settings, **options)
        np.testing.assert_array_equal(found.map.dataobj, wanted.map.dataobj)
        assert found.value == wanted.value


def test_a_network_that_was_prepared_answers_as_one_that_is_given():
    network, volume, control = WithAge().eval(), torch.rand(8, 9, 10), torch.rand(8, 9, 10)
    ready = heatlas.prepare(network, volume, others=(71,))
    for image_of in (volume, control):
        wanted = heatlas.explain(network, image_of, "deeplift", reference=[control], others=(71,))
        found = heatlas.explain(ready, image_of, "deeplift", reference=[control])
        assert (found.target, found.value, found.others["0"].item()) == (wanted.target, wanted.value, 71.0)
        np.testing.assert_array_equal(found.map.dataobj, wanted.map.dataobj)
    with pytest.raises(BadInputError, match=r"does not take a volume of \(1, 1, 2, 2, 2\) .* Check channels, grid"):
        heatlas.explain(ready, torch.rand(2, 2, 2), "gradient", target=0)
    with torch.no_grad():
        network.head.weight.zero_()
    assert heatlas.explain(ready, volume, "gradient").value != 0
    with pytest.raises(UsageError, match=r"give others, .* to heatlas\.prepare"):
        heatlas.explain(ready, volume, "gradient", others=(60,))


def test_what_the_page_of_the_library_shows_is_so():
    page = Path(__file__).parents[2] / "docs" / "library.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted > 10
    assert found.failed == 0


class Bins(nn.Module):
    """Gives a list of one tensor of three bins, as published networks for age do; takes an index too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.of_index = nn.Conv3d(1, 2, 3, 2), nn.Linear(2, 3), nn.Embedding(4, 2)

    def forward(self, x: Tensor, index: Tensor) -> list[Tensor]:
        features = torch.tanh(self.conv(x)).mean((2, 3, 4)) + self.of_index(index)
        return [torch.log_softmax(self.head(features), 1)]


def test_bins_of_a_number_are_said_and_an_index_reaches_the_network():
    images, network = [image(seed) for seed in range(3)], Bins()
    options = {"output_item": 0, "bins": [50, 60, 70], "others": [torch.tensor([2])], "contract": None}
    arrays = [np.asarray(one.dataobj) for one in images]
    found = heatlas.explain(network, arrays[0], "deeplift", reference=arrays[1:], **options)
    with torch.no_grad():
        mean = torch.from_numpy(np.mean(arrays[1:], axis=0))[None, None]
        wanted = [
            network(torch.from_numpy(arrays[0])[None, None], torch.tensor([2]))[0],
            network(mean, torch.tensor([2]))[0],
        ]
    ages = [float(one.exp() @ torch.tensor([50.0, 60.0, 70.0])) for one in wanted]
    np.testing.assert_allclose([found.value, found.reference_value], ages, rtol=1e-5)  # single precision
    assert f"expected value {ages[0]:.3g}, of the mean image of the controls {ages[1]:.3g};" in repr(found)
    each = heatlas.explain(network, arrays[0], "expected-gradients", reference=arrays[1:], **options)
    assert "of the controls (mean)" in repr(each)
    with pytest.raises(BadInputError, match=r"network Bins: .* with the others given .* torch\.tensor\(\[2\]\)"):
        heatlas.explain(network, arrays[0], "gradient", **options | {"others": [2]})


def test_a_map_of_a_small_part_of_the_answer_is_said_to_be_so():
    network = nn.Sequential(nn.Conv3d(1, 1, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(1, 1))
    with torch.no_grad():
        network[0].weight.fill_(0.01), network[0].bias.zero_()
        network[4].weight.fill_(1.0), network[4].bias.fill_(9.0)
    volume = np.full((6, 7, 8), 1.0, np.float32)
    with pytest.warns(UserWarning, match="lrp: 97 % of the explained value stay in biases"):
        heatlas.explain(network, volume, "lrp", settings={"rules": "composite", "bias": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network[4].bias.data.fill_(0.1)
        heatlas.explain(network, volume, "lrp")
