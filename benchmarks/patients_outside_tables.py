"""Tables of `patients_outside.py`: distributions over halves, for docs/patients.md."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from patients_halves import CHOICES, PRESET
from sections import write_section

TITLE = "Chosen in one half, judged in the other"
ANCHOR = "chosen-in-one-half-judged-in-the-other"
PREFACE = """\
`python benchmarks/patients_outside.py`: random halves of the 133, again and again. Intensities, registration, learning
rate and weight decay are chosen in the first half alone; the second half is only applied to. The rule was written
before a number was seen, and stands in the program. Median over halves (quartiles; range). Halves share people, so the
range is what a study of 66 people may find, not an interval. Each network learns from some 36 people, where those of a
run of the preset have 85; the networks of three folds answer together. Ridge learns from all 68.
[All answers](benchmarks/patients_outside.tsv)."""
RIDGE, CHOSEN = "ridge on regions", "chosen, one network a fold"
ONES = (
    RIDGE, "untrained network", "preset, one network a fold", CHOSEN, "preset, one network a fold, images moved",
    "preset, one network a fold, and ridge, stacked", "preset, one network a fold, started from ridge",
)  # fmt: skip
OF_EVERYONE = (
    "ridge on regions, younger people too, age removed", "preset, one network a fold, younger people too, age removed",
)  # fmt: skip
OF_FOURS = ("preset", "chosen")
SECOND_IN_WORDS = dict(
    zip(CHOICES, ("percentiles", "one map for all", "learning rate .0003", "weight decay .01"), strict=True)
)
"""The second value of each choice."""
IN_SHORT = "| random halves of the 133"
"""How the row of the page's first table begins."""


def spread(values: pd.Series, form: str) -> str:
    """Median, with quartiles and range.

    >>> spread(pd.Series([-0.5, 0.6, 0.7, 0.8, 0.9]), "+.2f")
    '+.70 (+.60 to +.80; −.50 to +.90)'
    """
    cells = [re.sub(r"(?<!\d)0\.", ".", format(one, form)) for one in values.quantile([0, 0.25, 0.5, 0.75, 1])]
    low, first, median, third, high = (one.replace("-", "−") for one in cells)
    return f"{median} ({first} to {third}; {low} to {high})"


def finished(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of the halves in which all predictors with one network a fold have answered."""
    done = rows.groupby("half")["predictor"].agg(lambda own: set(ONES) <= set(own))
    return rows[rows["half"].map(done)]


def summary(rows: pd.DataFrame) -> str:
    """The section: distributions over halves by predictor, and how often each choice was made."""
    rows = finished(rows)
    ridge_of = rows[rows["predictor"] == RIDGE].set_index("half")["area"]
    lines = ["| learned in the first half | halves | area in the second | minus ridge on regions | place of the "
             "hippocampus | its g | place of the amygdala | regions with p_fwe ≤ .05 |", "|" + "---|" * 8]  # fmt: skip
    for name in filter(set(rows["predictor"]).__contains__, (*ONES, *OF_EVERYONE, *OF_FOURS)):
        own = rows[rows["predictor"] == name]
        less = own["area"] - own["half"].map(ridge_of)
        cells = [name, str(len(own)), spread(own["area"], ".2f"), "" if name == RIDGE else spread(less, "+.2f")]
        if own["Hippocampus place"].notna().all():
            place = own["Hippocampus place"]
            cells += [f"{spread(place, '.0f')}; first in {(place == 1).sum()}", spread(own["Hippocampus g"], ".2f"),
                      spread(own["Amygdala place"], ".0f"), spread(own["regions p_fwe"], ".0f")]  # fmt: skip
        lines.append("| " + " | ".join([*cells, *[""] * (8 - len(cells))]) + " |")
    own = rows[rows["predictor"] == CHOSEN]
    often = [f"{word} in {(own[name] == CHOICES[name][1]).sum()}" for name, word in SECOND_IN_WORDS.items()]
    alike = (own[list(CHOICES)] == [getattr(PRESET, name) for name in CHOICES]).all(axis=1).sum()
    fours = rows.loc[rows["predictor"] == "chosen", "ensemble"]
    of_fours = f" Four networks a fold in {(fours == 4).sum()} of {len(fours)}." if len(fours) else ""
    said = f"Chosen, in {len(own)} halves: {', '.join(often)}; the recipe of the preset in {alike}.{of_fours}"
    return "\n".join([PREFACE, "", *lines, "", said])


def in_short(rows: pd.DataFrame) -> str:
    """A row for the page's first table: medians of the recipe that the first half chooses."""
    rows = finished(rows)
    own = rows[rows["predictor"] == CHOSEN]
    of_ridge = rows.loc[rows["predictor"] == RIDGE, "area"].median()
    cells = [f"{own['area'].median():.2f}", f"{of_ridge:.2f}",
             f"{own['Hippocampus place'].median():.0f}, {own['Hippocampus g'].median():.2f}",
             f"{own['regions p_fwe'].median():.0f}"]  # fmt: skip
    said = f"{IN_SHORT} ({len(own)}; medians): chosen and learned in one, judged in the other ([below](#{ANCHOR}))"
    return " | ".join([said, *(cell.replace("0.", ".") for cell in cells)]) + " |"


def write(rows: pd.DataFrame, page: Path) -> None:
    """Replace the section of the page, and its row in the first table."""
    write_section(page, TITLE, summary(rows), "Patients: what a network learns from 133 people")
    text, row = page.read_text(encoding="utf-8"), in_short(rows)
    page.write_text(re.sub(rf"^{re.escape(IN_SHORT)}.*$", lambda _: row, text, flags=re.MULTILINE), encoding="utf-8")
