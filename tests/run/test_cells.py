from __future__ import annotations

import pandas as pd
import pytest

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.tables import read_table, require_numbers, write_table


@pytest.mark.parametrize("note", ["plain", "two\nlines", 'three\n"quoted"\nlines'])
def test_a_wrong_cell_is_named_by_its_line_in_the_file(tmp_path, note):
    path = tmp_path / "table.tsv"
    write_table(path, pd.DataFrame({"note": [note, note, "last"], "age": ["70", "71", "seventy"]}))
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if "seventy" in text)
    with pytest.raises(BadInputError, match=rf"table\.tsv: line {line}, column age: 'seventy' is not a number"):
        require_numbers(path, read_table(path), ["age"])
