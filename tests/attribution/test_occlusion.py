from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_toys import GRID, Score, linear, random_volumes, random_weight, small_network, unchanged

from heatlas.pipeline.attribution.methods import attribute
from heatlas.pipeline.attribution.network_view import explaining
from heatlas.pipeline.attribution.perturbation.masking import (
    Masking,
    Occlusion,
    RegionLabels,
    RegionOcclusion,
    boxes,
    painted,
)
from heatlas.pipeline.run.errors import BadInputError, UsageError


def brute_force(score, x: torch.Tensor, baseline: torch.Tensor, size, stride) -> torch.Tensor:
    """The definition, box by box: starts at 0, stride, ... until the last voxel is covered; cut at the border."""
    starts = []
    for length, width, step in zip(x.shape[-3:], size, stride, strict=True):
        axis = [0]
        while axis[-1] + width < length:
            axis.append(axis[-1] + step)
        starts.append(axis)
    total, count = torch.zeros(x.shape[-3:], dtype=x.dtype), torch.zeros(x.shape[-3:], dtype=x.dtype)
    for corner in itertools.product(*starts):
        inside = torch.zeros(x.shape[-3:], dtype=torch.bool)
        inside[tuple(slice(a, a + width) for a, width in zip(corner, size, strict=True))] = True
        drop = score(x[None]) - score(torch.where(inside, baseline, x)[None])
        total[inside] += drop.item() / int(inside.sum())
        count[inside] += 1
    assert (count > 0).all()
    return total / count


CASES = [
    ((3, 3, 3), (3, 3, 3)),
    ((3, 2, 4), (2, 1, 3)),
    ((7, 8, 10), (1, 1, 1)),
    ((1, 1, 1), (1, 1, 1)),
    ((4, 5, 6), (3, 5, 5)),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("size", "stride"), CASES)
@pytest.mark.parametrize("baseline", [0.0, -1.3])
def test_boxes_equal_the_definition_on_a_network(size, stride, baseline):
    net, x = small_network(), random_volumes()
    found = attribute(net, x, 1, Occlusion(size, stride, Masking(baseline))).values
    for volume in range(2):
        expected = brute_force(
            lambda v: net(v)[:, 1].detach(), x[volume], torch.tensor(baseline, dtype=torch.float64), size, stride
        )
        torch.testing.assert_close(found[volume, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("size", "stride"), CASES)
def test_a_linear_score_gives_the_mean_of_box_means(size, stride):
    weight, x = random_weight(), random_volumes()
    share = x * weight
    total, count = torch.zeros_like(share), torch.zeros_like(share)
    for box in boxes(GRID, size, stride):
        where = (slice(None), slice(None), *box)
        total[where] += share[where].mean(dim=(2, 3, 4), keepdim=True)
        count[where] += 1
    found = attribute(linear(weight), x, 1, Occlusion(size, stride)).values
    torch.testing.assert_close(found, total / count, rtol=1e-10, atol=1e-12)


def test_boxes_that_tile_hand_out_the_whole_score_of_a_linear_model():
    weight, x = random_weight(), random_volumes()
    found = attribute(linear(weight), x, 1, Occlusion((3, 3, 4), (3, 3, 4))).values
    torch.testing.assert_close(found.sum(dim=(1, 2, 3, 4)), (x * weight).sum(dim=(1, 2, 3, 4)))


def test_one_voxel_boxes_on_a_linear_model_are_input_times_gradient_from_the_baseline():
    weight, x = random_weight(), random_volumes()
    method = Occlusion(1, 1, Masking(0.3))
    torch.testing.assert_close(attribute(linear(weight), x, 1, method).values, weight * (x - 0.3))


@given(
    lengths=st.tuples(*[st.integers(1, 9)] * 3),
    size=st.tuples(*[st.integers(1, 9)] * 3),
    stride=st.tuples(*[st.integers(1, 9)] * 3),
)
@settings(max_examples=60, deadline=None)
def test_boxes_cover_every_voxel_and_none_is_empty_or_redundant(lengths, size, stride):
    size = tuple(map(min, size, lengths))
    stride = tuple(map(min, stride, size))
    covered = torch.zeros(lengths)
    cover = boxes(lengths, size, stride)
    for box in cover:
        assert covered[box].numel() > 0
        assert (covered[box] == 0).any()  # each box, in order, reaches voxels that those before it do not
        covered[box] += 1
    assert (covered > 0).all()


def test_the_planted_box_is_found_and_air_is_exactly_zero():
    x = random_volumes()
    net = Score(lambda v: torch.tanh(v[:, 0, 2:5, 3:5, 4:7].sum(dim=(1, 2, 3)))).eval()
    found = attribute(net, x, 1, Occlusion(1, 1)).values[:, 0]
    planted = torch.zeros(GRID, dtype=torch.bool)
    planted[2:5, 3:5, 4:7] = True
    assert (found[:, planted] > 0).all()
    assert not found[:, ~planted].any()
    net = small_network(torch.float32)
    found = attribute(net, x.float(), 1, Occlusion(1, 1)).values
    assert not found[x == 0].any()  # exactly: hiding air changes nothing, not even a rounding error
    assert found[x != 0].any()


def test_boxes_in_air_cost_nothing():
    x = torch.zeros(1, 1, *GRID, dtype=torch.float64)
    x[..., :2, :2, :2] = 0.5
    net = linear(random_weight())
    attribute(net, x, 1, Occlusion(2, 2))
    # the check before work, which is also the reported start value, the whole volume, the only box with tissue
    assert net.evaluated == 3


@pytest.mark.parametrize("inner", ["baseline", "zero"])
def test_an_inner_stage_hides_all_channels_of_a_feature(inner):
    net, x = small_network(), random_volumes()
    found = attribute(
        net, x, 1, Occlusion((2, 3, 2), (2, 2, 1), Masking(0.4, inner)), stage=3, at_input_grid=False
    ).values
    with torch.no_grad():
        features = net[:3](x)
        baseline = net[:3](torch.full_like(x[:1], 0.4))[0] if inner == "baseline" else torch.zeros(()).double()
        for volume in range(2):
            expected = brute_force(lambda a: net[3:](a)[:, 1], features[volume], baseline, (2, 3, 2), (2, 2, 1))
            torch.testing.assert_close(found[volume, 0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("stage", [0, 3])
def test_batches_do_not_matter_and_are_bounded(stage):
    net, x = small_network(), random_volumes(3)
    at_once = attribute(net, x, 2, Occlusion(3, 2, batch=64), stage=stage).values
    for batch in (1, 5):
        torch.testing.assert_close(
            attribute(net, x, 2, Occlusion(3, 2, batch=batch), stage=stage).values, at_once, rtol=0, atol=1e-12
        )
    singles = torch.cat([attribute(net, v[None], 2, Occlusion(3, 2), stage=stage).values for v in x])
    torch.testing.assert_close(singles, at_once, rtol=0, atol=1e-12)
    model = linear(random_weight())
    attribute(model, x, 1, Occlusion(3, 2, batch=5))
    assert model.largest_batch == 5


def region_labels() -> torch.Tensor:
    labels = torch.zeros(GRID, dtype=torch.int32)
    labels[1:3, :4], labels[3:6, 2:5, 5:], labels[6, 7, 9], labels[4, 1, 0] = 48, 7, 30, 47
    return labels


def test_region_drops_of_a_linear_model_are_sums_over_the_region():
    weight, x, labels = random_weight(), random_volumes(), region_labels()
    method = RegionOcclusion(RegionLabels("toy", labels))
    with explaining(linear(weight), x, 1) as view:
        table = method.drops(view)
    assert table.numbers == (7, 30, 47, 48)
    found = attribute(linear(weight), x, 1, method).values[:, 0]
    for number in table.numbers:
        inside = labels == number
        expected = (x[:, 0] * weight)[:, inside].sum(dim=1)
        torch.testing.assert_close(table.of(number), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found[:, inside].sum(dim=1), expected, rtol=1e-10, atol=1e-12)
        assert (found[:, inside] == found[:, inside][:, :1]).all()  # one value per region
        assert table.voxels[table.numbers.index(number)] == inside.sum()
    assert not found[:, labels == 0].any()


def test_region_drops_of_a_network_equal_hiding_by_hand_whatever_the_batch():
    net, x, labels = small_network(), random_volumes(3), region_labels()
    tables = []
    for batch in (1, 2, 8):
        with explaining(net, x, 1, start="probability") as view:
            tables.append(RegionOcclusion(RegionLabels("toy", labels), Masking(0.2), batch).drops(view))
    with torch.no_grad():
        whole = net(x).softmax(1)[:, 1]
        for number in tables[0].numbers:
            without = net(torch.where(labels == number, 0.2, x)).softmax(1)[:, 1]
            for table in tables:
                torch.testing.assert_close(table.of(number), whole - without, rtol=0, atol=1e-12)


def test_labels_on_another_grid_or_stage_are_refused():
    net, x = small_network(), random_volumes()
    turned = RegionOcclusion(RegionLabels("atlas X", region_labels().permute(2, 1, 0)))
    with unchanged(net), pytest.raises(BadInputError, match=r"atlas X.*\(10, 8, 7\).*\(7, 8, 10\)"):
        attribute(net, x, 1, turned)
    with pytest.raises(UsageError, match="stage 0"):
        attribute(net, x, 1, RegionOcclusion(RegionLabels("atlas", region_labels())), stage=2)
    for labels in (torch.rand(GRID), torch.zeros(GRID, dtype=torch.int32), torch.ones(2, 2, dtype=torch.int32)):
        with pytest.raises(BadInputError, match="atlas X"):
            RegionLabels("atlas X", labels)


def test_painting_is_by_number_not_by_position():
    labels = torch.tensor([[[0, 9, 4], [4, 120, 5]]])
    values = torch.tensor([[1.0, 2.0, 3.0]])
    assert painted(labels, (4, 9, 121), values).tolist() == [[[[[0, 2, 1], [1, 0, 0]]]]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 2, "stride": 3}, "uncovered"),
        ({"size": 0}, "size = 0"),
        ({"size": (2, 2)}, "size"),
        ({"size": 2.5}, "size = 2.5"),
        ({"size": (2, 2, True)}, r"size = \(2, 2, True\)"),
        ({"size": 4, "stride": -1}, "stride"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(UsageError, match=message):
        Occlusion(**settings)


def test_boxes_larger_than_the_grid_are_refused_instead_of_one_flat_map():
    with pytest.raises(UsageError, match=r"\(8, 8, 8\).*\(7, 8, 10\)"):
        attribute(small_network(), random_volumes(), 1, Occlusion(8, 8))


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_constant_volumes_give_finite_maps(value):
    x = torch.full((1, 1, *GRID), value, dtype=torch.float64)
    for method in (Occlusion(3, 2), RegionOcclusion(RegionLabels("toy", region_labels()))):
        found = attribute(small_network(), x, 1, method).values
        assert torch.isfinite(found).all()
        assert bool(found.any()) == (value != 0)


def test_the_model_is_unchanged_also_after_an_exception():
    net, x = small_network(), random_volumes()
    with unchanged(net):
        attribute(net, x, 1, Occlusion(3, 3))
        attribute(net, x, 1, RegionOcclusion(RegionLabels("toy", region_labels())))

    class Breaks(torch.nn.Module):
        def forward(self, a):
            if len(a) > 3:
                raise RuntimeError("too much")
            return a

    fragile = torch.nn.Sequential(Breaks(), *net).eval()
    with unchanged(fragile), pytest.raises(RuntimeError, match="too much"):
        attribute(fragile, x, 1, Occlusion(3, 3, batch=8))


def test_sidecar_says_baseline_and_atlas():
    labels = RegionLabels("neuromorphometrics", region_labels())
    parameters = attribute(linear(random_weight()), random_volumes(), 1, RegionOcclusion(labels)).parameters
    assert "neuromorphometrics" in parameters["regions"]
    assert "baseline=0.0" in parameters["masking"]
    assert repr(labels) != repr(RegionLabels("neuromorphometrics", region_labels() * 2))
