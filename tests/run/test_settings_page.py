"""docs/settings.md is what the declarations of the settings say, and every setting is explained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from printed_pages import REMEDY, help_texts, settings_page

from heatlas.pipeline.run.config.networks import NETWORKS
from heatlas.pipeline.run.config.settings import Config

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def records(record: type) -> Iterator[type]:
    yield record
    kinds = get_type_hints(record)
    for field in fields(record):
        if is_dataclass(kinds[field.name]):
            yield from records(kinds[field.name])


@pytest.mark.studies
def test_the_page_is_made_from_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), REMEDY


@pytest.mark.parametrize("record", [*records(Config), *dict.fromkeys(NETWORKS.values())], ids=lambda one: one.__name__)
def test_every_setting_is_explained(record: type) -> None:
    kinds, texts = get_type_hints(record), help_texts(record)
    names = [field.name for field in fields(record) if not is_dataclass(kinds[field.name])]
    missing = [name for name in names if not texts.get(name)]
    assert not missing


@pytest.mark.studies
def test_rows_say_kind_default_and_meaning() -> None:
    page = settings_page()
    assert page.count("## `[statistics.primary]`") == 1
    for row in (
        "| `accumulate` | whole number, between 1 and 1,000 | `1` | Batches whose gradients are averaged ",
        '| `flagged` | "keep", "drop", "ask" | `"keep"` | What happens to scans whose registration is in doubt; `ask` ',
        "| `betas` | list of numbers, at least one value, each once, each in [0, 10), each of at most ",
        "| `gamma` | list of 2 numbers, in rising order, each above 0 and up to 10 | `[0.7, 1.5]` | Lowest and ",
        '| `weight` | "usual" or number, between 0 and 1,000,000 | `"usual"` | Weight of the loss ',
        '| `reference_match` | list of "age", "sex", "site", each value once | `[]` | Take the ',
        '| `architecture` | text | `"founding"` | Name of the family. |',
        '"group", "position", "all" | `"position"` | Normalisation',  # another default than the base's
    ):
        assert row in page


@pytest.mark.studies
def test_help_of_a_base_is_inherited() -> None:
    texts = help_texts(NETWORKS["bcos-vgg11"])
    assert texts["b"].startswith("Exponent of all layers.")
    assert texts["width"].startswith("Factor on the channels; 1 gives 64 to 512")
