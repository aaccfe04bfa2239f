"""Is an image that is not what it seems said to be so? What `heatlas apply` says of one image of each of many kinds.

    PYTHONPATH=benchmarks python tests/attribution/unlike_images/unlike_images.py ../shared/data OUT --draw 2

OUT gets images and answers; a kind with an answer is not repeated, ``--only`` names kinds, ``--draw 1`` makes them of
other people, and ``--page docs/benchmarks/unlike_images.md`` writes the tables. An image is said to be unlike if it is
refused in one line with nothing written, or if a measure of ``likeness.tsv`` that fits what is wrong with it is unlike,
and not as much so in the ordinary image that it was made of. Images are made by `unlike_kinds`; what is refused as its
file is read, whatever it shows, is asked by tests.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
from harness import arguments_of, kept_rows, replaced, show_page, table
from unlike_kinds import CONTROLS, KINDS, NETWORK, Data, Kind, Picture

from heatlas.pipeline.run.work.digests import file_digest
from heatlas.workflows.command_line import main

REFUSED = "65: "
FARTHER = 2.0
"""Robust standard deviations that an image must be farther off than the one it was made of, where that is unlike."""
NO_NAME = r"(heatlas: )?(/\S*/)+"
COLUMNS = ("kind", "said", "measures", "written")


def made(kind: Kind, data: Data, folder: Path) -> Path:
    """The image of a kind; it is alone in its folder, since what stands beside an image may belong to it."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        picture = kind.make(data, folder / f"{kind.name}.nii.gz")
        if isinstance(picture, Picture):
            picture.write(folder / f"{kind.name}.nii.gz")
    return next(folder.iterdir())


def exported(folder: Path) -> Path:
    """A copy of the export in which one method makes maps, which take longest and decide nothing here."""
    if not folder.is_dir():
        shutil.copytree(NETWORK, folder)
        config, facts = folder / "configs/config.toml", folder / "configs/metadata.json"
        before = file_digest(config)
        config.write_text(re.sub(r"(?m)^methods = .*", 'methods = ["gradient"]', config.read_text()))
        facts.write_text(facts.read_text().replace(before, file_digest(config)))
    return folder


def answer(image: Path, out: Path, network: Path) -> dict[str, object]:
    """What the command says of an image: its refusal, or the measures in which it is unlike, the farthest first."""
    shutil.rmtree(out, ignore_errors=True)
    words = ["apply", network, image, out, "--n-procs", 1, "--new-people"]
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = main([*map(str, words), "--stop-after", "attribution"])
    if code:
        line = (said.getvalue().strip() or "nothing").splitlines()[-1]
        if "every unit failed" in line:  # the reason is in a table
            line += f" {pd.read_csv(next(out.rglob('failures.tsv')), sep=chr(9))['message'][0]}"
        written = out.is_dir() and any(out.iterdir())
        return {"said": f"{code}: {re.sub(NO_NAME, '', line)}", "measures": "", "written": written}
    rows = pd.read_csv(out / "group" / "likeness.tsv", sep="\t").sort_values("distance", ascending=False)
    unlike = rows[rows["verdict"] == "unlike"].drop_duplicates("measure")
    far = unlike["distance"].fillna(float("inf"))  # of a measure with a limit of its own
    measures = ",".join(f"{name} {one:.1f}" for name, one in zip(unlike["measure"], far, strict=True))
    return {"said": "unlike" if measures else "alike", "measures": measures, "written": True}


def distances(row: Mapping[str, Any]) -> dict[str, float]:
    """Measures in which an image is unlike."""
    pairs = (one.rsplit(" ", 1) for one in str(row["measures"]).split(",") if one)
    return {name: float(far) for name, far in pairs}


def verdict(kind: Kind, row: Mapping[str, Any], unchanged: Mapping[str, float]) -> str:
    """`unchanged`: measures in which the image is unlike that this one was made of; they count only if much farther."""
    said = str(row["said"])
    if not kind.fits:
        return "right" if said == "alike" else "false alarm"
    late = ""
    if said[0].isdigit():
        fits, late = any(word in said for word in kind.fits), ", late" if row["written"] else ""
        found = said.startswith(REFUSED)
    else:
        new = {name for name, far in distances(row).items() if far > unchanged.get(name, 0) + FARTHER}
        fits, found = bool(new & set(kind.fits)), bool(new)
    return ("right" if fits else "other reason") + late if found else "missed"


def lines_of(rows: pd.DataFrame, data: Data) -> list[str]:
    found = {str(row["kind"]): row for row in rows.astype(object).fillna("").to_dict("records")}
    lines = []
    for heading, kinds in (("image", KINDS), ("ordinary image", CONTROLS)):
        cells = []
        for kind in kinds:
            if row := found.get(kind.name):
                unchanged = distances(found.get(data.unchanged(kind.name), {"measures": ""}))
                said = str(row["measures"]).replace(",", ", ").replace(" inf", "") or str(row["said"])
                cells.append((kind.words, said.removeprefix(REFUSED).replace("|", "/"), verdict(kind, row, unchanged)))
        lines += [*table([f"{heading} ({len(cells)})", "what was said", "verdict"], cells), ""]
        print(pd.Series([cell[2] for cell in cells], dtype=str).value_counts().to_dict())
    return lines


def measure() -> None:
    given = arguments_of(__doc__, "folder out --only --page", folder={"type": Path}, draw=2)
    data, answers = Data(given.folder.resolve(), given.draw), given.out / "answers.tsv"
    network = exported(given.out / "network")
    for kind in [*KINDS, *CONTROLS]:
        wanted = kind.name in given.only if given.only else kind.name not in set(kept_rows(answers, COLUMNS)["kind"])
        if wanted:
            image = made(kind, data, given.out / "images" / kind.name)
            row = {"kind": kind.name, **answer(image, given.out / "answers" / kind.name, network)}
            replaced(pd.DataFrame([row]), answers, ["kind"])
            print(*row.values(), flush=True)
    show_page("\n".join(lines_of(kept_rows(answers, COLUMNS), data)), given.page, "Images that are not what they seem")


if __name__ == "__main__":
    measure()
