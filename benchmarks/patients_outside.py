"""What to expect of new people: choices made in half of the patients and controls, and judged in the other half.

    python benchmarks/patients_outside.py ../shared/data/oasis1/older OUT --halves 12 --fours 12
    python benchmarks/patients_outside.py ../shared/data/oasis1/older OUT --halves 0 --table TSV --page docs/patients.md

The 133 people of docs/patients.md are halved at random, by CDR (0, .5, 1 and more), again and again. Whatever the
preset `patients` embodies and can be afforded is chosen in the first half alone; the second half is only applied to.

**The rule of choice, written before a number was seen.** Three folds of the first half; in each, four fifths of the
rest train and a fifth selects the epoch. `CHOICES` are gone through in their order, each once, from the first value of
each, which is what this program did before it met patients. A value takes the place of the first one if its area under
the curve within folds, of people who were not trained with, is larger; at a tie the first stays. What is chosen is kept
for all later choices. All this with one network a fold, since four cost too much; whether four networks a fold take the
place of one is asked last, by the same rule, when all halves have been done with one (`--fours`). Training for 40
epochs with averaged weights (twice the time), grids of 3 mm (1.6 times) and augmentation were not asked: they would
have cost more than all the rest. So grid (4 mm), 20 epochs and the network are as in the preset.

The networks of all folds together (three, or twelve) answer for the second half by their mean logit, those of the
recipe chosen and those of the preset. Evidence is expected gradients of that mean, each network with `CONTROLS` of its
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
mean image. OUT keeps networks and answers; the same command continues. The table has no people in it.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch
from harness import added, arguments_of, kept_rows, line, table, write_tables
from patients_halves import CHOICES, EVERYONE, FOURS, PRESET, Floats, Half, Study

TITLE, SEARCH = "Other ways past ridge", Path("benchmarks", "patients_search.md")  # beside the page
ANCHOR = "chosen-in-one-half-judged-in-the-other"
RIDGE, CHOSEN = "ridge on regions", "chosen, one network a fold"
ONES = (
    RIDGE, "untrained network", "preset, one network a fold", CHOSEN, "preset, one network a fold, images moved",
    "preset, one network a fold, and ridge, stacked", "preset, one network a fold, started from ridge",
)  # fmt: skip
OF_EVERYONE = (
    "ridge on regions, younger people too, age removed",
    "preset, one network a fold, younger people too, age removed",
)
OF_FOURS = ("preset", "chosen")
SECOND_IN_WORDS = dict(
    zip(CHOICES, ("percentiles", "one map for all", "learning rate 0.0003", "weight decay 0.01"), strict=True)
)
"""The second value of each choice."""
IN_SHORT, HOW_OFTEN = "| random halves of the 133", "Chosen, in"
"""How the row of the page's first table begins, and the line below the section's."""
COLUMNS = (
    "learned in the first half", "halves", "area in the second", "minus ridge on regions", "place of the hippocampus",
    "its g", "place of the amygdala", "regions with p_fwe ≤ 0.05",
)  # fmt: skip


Answer = Callable[[Half], tuple[Floats, Floats | None, dict[str, object]]]
WITH_ONE: Sequence[Answer] = (
    lambda half: (*half.ridge(*half.parts), {}),
    lambda half: (half.untrained(), None, {}),
    lambda half: half.says(PRESET),
    lambda half: half.says(half.chosen),
    lambda half: (half.applied(PRESET, (-1, 0, 1)), None, {}),
    Half.together,
    Half.on_top,
)
WITH_EVERYONE: Sequence[Answer] = (
    lambda half: (half.ridge_of_everyone(), None, {}),
    lambda half: (half.applied(EVERYONE), None, {}),
)
WITH_FOUR: Sequence[Answer] = (
    lambda half: half.says(FOURS),
    lambda half: half.says(half.better(half.chosen, dataclasses.replace(half.chosen, ensemble=4))),
)


def spread(values: pd.Series, form: str) -> str:
    """Median, with quartiles and range.

    >>> spread(pd.Series([-0.5, 0.6, 0.7, 0.8, 0.9]), "+.2f")
    '+0.70 (+0.60 to +0.80; −0.50 to +0.90)'
    """
    cells = [format(one, form).replace("-", "−") for one in values.quantile([0, 0.25, 0.5, 0.75, 1])]
    low, first, median, third, high = cells
    return f"{median} ({first} to {third}; {low} to {high})"


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    done = rows.groupby("half")["predictor"].agg(lambda own: set(ONES) <= set(own))
    return rows[rows["half"].map(done)]


def summary(rows: pd.DataFrame) -> str:
    """The section: distributions over halves by predictor, and how often each choice was made."""
    rows = finished(rows)
    ridge_of = rows[rows["predictor"] == RIDGE].set_index("half")["area"]
    lines = table(COLUMNS)
    for name in filter(set(rows["predictor"]).__contains__, (*ONES, *OF_EVERYONE, *OF_FOURS)):
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
    fours = rows.loc[rows["predictor"] == "chosen", "ensemble"]
    of_fours = f" Four networks a fold in {(fours == 4).sum()} of {len(fours)}." if len(fours) else ""
    counts = f"{HOW_OFTEN} {len(own)} halves: {', '.join(often)}; the recipe of the preset in {alike}.{of_fours}"
    return "\n".join([*lines, "", counts])


def in_short(rows: pd.DataFrame) -> str:
    """A row for the page's first table: medians of the recipe that the first half chooses."""
    rows = finished(rows)
    own = rows[rows["predictor"] == CHOSEN]
    of_ridge = rows.loc[rows["predictor"] == RIDGE, "area"].median()
    cells = [f"{own['area'].median():.2f}", f"{of_ridge:.2f}"]
    cells.append(f"{own['Hippocampus place'].median():.0f}, {own['Hippocampus g'].median():.2f}")
    cells.append(f"{own['regions p_fwe'].median():.0f}")
    name = f"{IN_SHORT} ({len(own)}; medians): chosen and learned in one, judged in the other ([below](#{ANCHOR}))"
    return " | ".join([name, *cells]) + " |"


def write(rows: pd.DataFrame, page: Path) -> None:
    """Replace the row in the page's first table; of the page of the search the table, and the line below it."""
    text, search = summary(rows), page.parent / SEARCH
    write_tables(search, TITLE, text, "Patients: what was tried for the preset")
    for file, begin, new in ((page, IN_SHORT, in_short(rows)), (search, HOW_OFTEN, text.splitlines()[-1])):
        old = file.read_text(encoding="utf-8")
        file.write_text(re.sub(rf"^{re.escape(begin)}.*$", lambda _: new, old, flags=re.MULTILINE), encoding="utf-8")  # noqa: B023


def answer_all(study: Study, number: int, predictors: Mapping[str, Answer]) -> None:
    half, path = Half(study, number, study.out / f"half-{number}"), study.out / "halves.tsv"
    half.folder.mkdir(exist_ok=True)
    for name, answer in predictors.items():
        rows = kept_rows(path, ["half", "predictor"])
        if ((rows["half"] == number) & (rows["predictor"] == name)).any():
            continue
        begun = time.process_time()
        row = half.row(name, *answer(half)) | {"cpu minutes": (time.process_time() - begun) / 60}
        added(rows, [row], path)
        print(row, flush=True)


def main() -> None:
    options = arguments_of(
        __doc__,
        "source out --table --page",
        halves=(12, "halvings in all"),
        fours=(0, "halvings in all with four networks a fold, too"),
        everyone=(0, "halvings in all with the younger people, too"),
        table={"type": Path, "help": "where all answers go, without people"},
    )
    torch.set_num_threads(1)
    study = Study(options.source, options.out)
    for count, names, answers_of in (
        (options.halves, ONES, WITH_ONE),
        (options.everyone, OF_EVERYONE, WITH_EVERYONE),
        (options.fours, OF_FOURS, WITH_FOUR),
    ):
        for number in range(count):
            answer_all(study, number, dict(zip(names, answers_of, strict=True)))
    rows = pd.read_csv(options.out / "halves.tsv", sep="\t").sort_values(["half", "predictor"])
    if options.table:
        rows.drop(columns="cpu minutes").to_csv(options.table, sep="\t", index=False, float_format="%.4g", na_rep="n/a")
        rows = pd.read_csv(options.table, sep="\t")  # the page is that of the table
    if options.page:
        write(rows, options.page)
    print(summary(rows))


if __name__ == "__main__":
    main()
