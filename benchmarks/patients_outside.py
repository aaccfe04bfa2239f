"""What to expect of new people: choices made in half of the patients and controls, and judged in the other half.

    python benchmarks/patients_outside.py ../shared/data/oasis1/older OUT --halves 10 --everyone 10

The 133 people of docs/patients.md are halved at random, by CDR (0, .5, 1 and more), again and again. Whatever the
preset `patients` embodies and can be afforded is chosen in the first half alone; the second half is only applied to.

**The rule of choice, written before a number was seen.** Three folds of the first half; in each, four fifths of the
rest train and a fifth selects the epoch. `CHOICES` are gone through in their order, each once, from the first value of
each, which is what this program did before it met patients. A value takes the place of the first one if its area under
the curve within folds, of people who were not trained with, is larger; at a tie the first stays. What is chosen is kept
for all later choices. All this with one network a fold, since four cost too much. Training for 40 epochs with averaged
weights (twice the time), grids of 3 mm (1.6 times) and augmentation were not asked: they would have cost more than all
the rest. So grid (4 mm), 20 epochs and the network are as in the preset.

The networks of all three folds together answer for the second half by their mean logit, those of the recipe chosen and
those of the preset. Evidence is expected gradients of that mean, each network with `CONTROLS` of its
training part; places are by |g| of the classes among bilateral regions; p_fwe is that of `group_comparisons` (the
networks are the same for all, so no folds are held). Beside them, all learned in the first half: ridge on the means and
spreads of regions (the baseline of a run), an untrained network with a linear head (another), the preset's networks
with their answers averaged over images moved by a voxel to either side, and the preset's networks and ridge stacked:
weights of both logits from the folds of the first half, by which their evidence adds up, too. Last, networks of the
preset's recipe that start from ridge: they learn what is added to its logit (of those who train, by a ridge of
others). With `--everyone`, ridge and networks also learn from the 146 younger people of OASIS-1, as further controls:
all are moved by one map, and a parabola over age, fitted in the controls that are learned from, is taken out of regions
and voxels.

Scans are registered once for all halves, which sees no label: an affine map for each scan, or one for all, that of the
mean image. OUT keeps networks and answers; the same command continues. OUT/halves.tsv, of which
docs/benchmarks/patients_outside.tsv is a copy, has no people in it; the table of docs/benchmarks/patients_search.md and
a row of docs/patients.md are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import torch
from harness import added, arguments_of, kept_rows, line, table
from patients_halves import CHOICES, EVERYONE, PRESET, Floats, Half, Study

ANCHOR = "chosen-in-one-half-judged-in-the-other"
RIDGE, CHOSEN = "ridge on regions", "chosen, one network a fold"
SECOND_IN_WORDS = dict(
    zip(CHOICES, ("percentiles", "one map for all", "learning rate 0.0003", "weight decay 0.01"), strict=True)
)
"""The second value of each choice."""
COLUMNS = (
    "learned in the first half", "halves", "area in the second", "minus ridge on regions", "place of the hippocampus",
    "its g", "place of the amygdala", "regions with p_fwe ≤ 0.05",
)  # fmt: skip
Answer = Callable[[Half], tuple[Floats, Floats | None, dict[str, object]]]
PREDICTORS: Mapping[str, Answer] = {
    RIDGE: lambda half: (*half.ridge(*half.parts), {}),
    "untrained network": lambda half: (half.untrained(), None, {}),
    "preset, one network a fold": lambda half: half.says(PRESET),
    CHOSEN: lambda half: half.says(half.chosen),
    "preset, one network a fold, images moved": lambda half: (half.applied(PRESET, (-1, 0, 1)), None, {}),
    "preset, one network a fold, and ridge, stacked": Half.together,
    "preset, one network a fold, started from ridge": Half.on_top,
}
OF_EVERYONE: Mapping[str, Answer] = {
    "ridge on regions, younger people too, age removed": lambda half: (half.ridge_of_everyone(), None, {}),
    "preset, one network a fold, younger people too, age removed": lambda half: (half.applied(EVERYONE), None, {}),
}


def spread(values: pd.Series, form: str) -> str:
    """Median, with quartiles and range.

    >>> spread(pd.Series([-0.5, 0.6, 0.7, 0.8, 0.9]), "+.2f")
    '+0.70 (+0.60 to +0.80; −0.50 to +0.90)'
    """
    cells = [format(one, form).replace("-", "−") for one in values.quantile([0, 0.25, 0.5, 0.75, 1])]
    low, first, median, third, high = cells
    return f"{median} ({first} to {third}; {low} to {high})"


def summary(rows: pd.DataFrame) -> str:
    """The section: distributions over halves by predictor, and how often each choice was made."""
    ridge_of = rows[rows["predictor"] == RIDGE].set_index("half")["area"]
    lines = table(COLUMNS)
    for name in filter(set(rows["predictor"]).__contains__, (*PREDICTORS, *OF_EVERYONE)):
        own = rows[rows["predictor"] == name]
        less = own["area"] - own["half"].map(ridge_of)
        cells = [name, str(len(own)), spread(own["area"], ".2f"), "" if name == RIDGE else spread(less, "+.2f")]
        if own["Hippocampus place"].notna().all():
            place = own["Hippocampus place"]
            cells += [f"{spread(place, '.0f')}; first in {(place == 1).sum()}", spread(own["Hippocampus g"], ".2f")]
            cells += [spread(own[name], ".0f") for name in ("Amygdala place", "regions p_fwe")]
        lines.append(line(*cells, *[""] * (len(COLUMNS) - len(cells))))
    own = rows[rows["predictor"] == CHOSEN]
    often = [f"{word} in {(own[name] == CHOICES[name][1]).sum()}" for name, word in SECOND_IN_WORDS.items()]
    alike = (own[list(CHOICES)] == [getattr(PRESET, name) for name in CHOICES]).all(axis=1).sum()
    counts = f"Chosen, in {len(own)} halves: {', '.join(often)}; the recipe of the preset in {alike}."
    return "\n".join([*lines, "", counts])


def in_short(rows: pd.DataFrame) -> str:
    """A row for the page's first table: medians of the recipe that the first half chooses."""
    own = rows[rows["predictor"] == CHOSEN]
    of_ridge = rows.loc[rows["predictor"] == RIDGE, "area"].median()
    cells = [f"{own['area'].median():.2f}", f"{of_ridge:.2f}"]
    cells.append(f"{own['Hippocampus place'].median():.0f}, {own['Hippocampus g'].median():.2f}")
    cells.append(f"{own['regions p_fwe'].median():.0f}")
    words = f"random halves of the 133 ({len(own)}; medians): chosen and learned in one, judged in the other"
    return line(f"{words} ([below](#{ANCHOR}))", *cells)


def main() -> None:
    options = arguments_of(
        __doc__,
        "source out",
        halves=(10, "halvings in all"),
        everyone=(0, "halvings in all with the younger people, too"),
    )
    torch.set_num_threads(1)
    study, path = Study(options.source, options.out), options.out / "halves.tsv"
    rows = kept_rows(path, ["half", "predictor"])
    for count, predictors in ((options.halves, PREDICTORS), (options.everyone, OF_EVERYONE)):
        for number in range(count):
            half = Half(study, number, options.out / f"half-{number}")
            half.folder.mkdir(exist_ok=True)
            for name, answer in predictors.items():
                if not ((rows["half"] == number) & (rows["predictor"] == name)).any():
                    rows = added(rows, [half.row(name, *answer(half))], path)
                    print(rows.iloc[-1].to_dict(), flush=True)
    print(summary(rows), "", in_short(rows), sep="\n")


if __name__ == "__main__":
    main()
