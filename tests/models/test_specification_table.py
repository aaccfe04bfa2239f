"""The page on these networks names a test, or what is missing, for every part of their specification."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_part_has_a_row_and_every_named_test_exists():
    page = (ROOT / "docs" / "theory" / "inherent.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (S\d\d) \|(.*)\|$", page, re.MULTILINE))
    assert list(rows) == [f"S{number:02}" for number in range(1, 41)]
    for part, row in rows.items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named or "Missing:" in row, part
        for file, test in named:
            source = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", source, re.MULTILINE), f"{part}: {file} has no {test}"
