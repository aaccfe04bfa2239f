"""Long-tailed cohorts: counts, parts without common participants, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.studies.long_tail import groups_of, long_tailed_counts, long_tailed_parts


def people(**sizes: int) -> dict[str, str]:
    return {f"sub-{name}{n}": name for name, size in sizes.items() for n in range(size)}


@pytest.mark.parametrize("ratio", [10, 50, 100, 150])
def test_counts_of_the_long_tailed_cifar(ratio: int) -> None:
    """Of ten classes with 5,000 images, as in the literature: exponential, first over last is the ratio."""
    counts = np.array(long_tailed_counts([5000] * 10, ratio))
    assert counts[0] == 5000
    assert counts[-1] == round(5000 / ratio)
    assert np.diff(np.log(counts)) == pytest.approx(np.full(9, -np.log(ratio) / 9), abs=0.03)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 400), min_size=2, max_size=7), ratio=st.floats(1, 100))
def test_counts_hold_the_ratio_up_to_rounding_and_use_all_there_are(sizes: list[int], ratio: float) -> None:
    shares = ratio ** (-np.arange(len(sizes)) / (len(sizes) - 1))
    if (sizes / shares).min() < ratio:  # the last class would have less than one
        with pytest.raises(UsageError, match="at most"):
            long_tailed_counts(sizes, ratio)
        return
    counts = long_tailed_counts(sizes, ratio)
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sorted(counts, reverse=True) == list(counts)
    assert (counts[0] - 0.5) / (counts[-1] + 0.5) <= ratio * (1 + 1e-9)
    assert (counts[0] + 0.5) / (counts[-1] - 0.5) >= ratio * (1 - 1e-9)
    assert any(count == size for count, size in zip(counts, sizes, strict=True))  # no more were possible


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(8, 60), min_size=2, max_size=4),
    ratio=st.floats(1, 5),
    share=st.floats(0.1, 0.6),
    seed=st.integers(0, 99),
)
def test_parts_share_no_one_and_are_balanced_where_they_should_be(
    sizes: list[int], ratio: float, share: float, seed: int
) -> None:
    class_of = people(**{name: size for name, size in zip("abcd", sizes, strict=False)})
    try:
        parts = long_tailed_parts(class_of, ratio, share, seed=seed)
    except UsageError:
        return  # too few people for the ratio
    training = {person for own in parts.training.values() for person in own}
    test = {person for own in parts.test.values() for person in own}
    assert not training & test
    assert {len(own) for own in parts.few.values()} == {parts.shots} == {min(map(len, parts.training.values()))}
    assert len({len(own) for own in parts.test.values()}) == 1
    for name in parts.classes:
        assert set(parts.few[name]) <= set(parts.training[name])
        assert {class_of[person] for part in (parts.training, parts.test) for person in part[name]} == {name}
        assert len(set(parts.training[name])) == len(parts.training[name])
    sizes_of_training = [len(parts.training[name]) for name in parts.classes]
    assert sizes_of_training == sorted(sizes_of_training, reverse=True)


def test_another_ratio_draws_from_the_same_people() -> None:
    class_of = people(CN=80, MCI=60, AD=40)
    mild, steep = long_tailed_parts(class_of, 2, seed=3), long_tailed_parts(class_of, 10, seed=3)
    assert mild.test == steep.test
    assert [len(mild.training[name]) for name in mild.classes] == [60, 42, 30]
    assert [len(steep.training[name]) for name in steep.classes] == [70, 22, 7]
    assert set(steep.training["AD"]) < set(mild.training["AD"])
    assert steep == long_tailed_parts(dict(reversed(class_of.items())), 10, seed=3)  # whatever the order of rows
    assert steep.test != long_tailed_parts(class_of, 10, seed=4).test
    assert long_tailed_parts(class_of, 4, classes=("AD", "CN", "MCI")).classes == ("AD", "CN", "MCI")


def test_groups_of_the_literature() -> None:
    sizes = lambda count: [len(own) for own in groups_of([f"{n}" for n in range(count)]).values()]  # noqa: E731
    assert sizes(10) == [4, 3, 3]
    assert sizes(100) == [34, 33, 33]
    assert groups_of(["CN", "MCI", "AD"]) == {"head": ("CN",), "mid": ("MCI",), "tail": ("AD",)}


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: long_tailed_parts(people(CN=9), 2, classes=("CN", "AD")),
            BadInputError,
            "class AD has no participant",
        ),
        (lambda: long_tailed_parts(people(CN=9, AD=1), 2), BadInputError, "class AD has 1 participant"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 50), UsageError, "ratio of at most 7"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 0.5), UsageError, "1 or more"),
        (lambda: long_tailed_parts(people(CN=9), 2), UsageError, "at least two"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 2, classes=("CN",)), UsageError, "AD is missing"),
        (lambda: long_tailed_parts(people(CN=9, AD=9), 2, test_share=1.0), UsageError, "test_share"),
    ],
)
def test_cohorts_that_cannot_be_drawn_are_refused(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
