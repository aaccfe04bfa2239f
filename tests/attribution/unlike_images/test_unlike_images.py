"""Each image that is not what it seems gets the verdict of docs/benchmarks/unlike_images.md (draw 2)."""

from __future__ import annotations

from pathlib import Path

import pytest
from unlike_images import answer, distances, exported, made, verdict
from unlike_kinds import CONTROLS, KINDS, Data, Kind

PAGE = Path(__file__).parents[3] / "docs" / "benchmarks" / "unlike_images.md"
ROWS = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
EVERY = {kind.name: kind for kind in (*KINDS, *CONTROLS)}


class Asked:
    """What the command says of each image, asked once."""

    def __init__(self, data: Data, folder: Path) -> None:
        self.data, self.folder, self.network = data, folder, exported(folder / "network")
        self.said: dict[str, dict[str, object]] = {}

    def of(self, kind: Kind) -> dict[str, object]:
        if kind.name not in self.said:
            image = made(kind, self.data, self.folder / "images" / kind.name)
            self.said[kind.name] = answer(image, self.folder / "answers" / kind.name, self.network)
        return self.said[kind.name]


@pytest.fixture(scope="module")
def asked(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    return Asked(Data(real_data, 2), tmp_path_factory.mktemp("unlike"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_verdict_is_that_of_the_page(asked: Asked, name: str) -> None:
    kind = EVERY[name]
    said = asked.of(kind)
    unchanged = distances(asked.of(EVERY[asked.data.unchanged(name)])) if kind.fits else {}
    (stated,) = {row[2] for row in ROWS if len(row) == 3 and row[0] == kind.words}
    assert verdict(kind, said, unchanged) == stated, said
