"""Run the first lines of docs/library.md on a run, and keep the picture that they end in.

``PYTHONPATH=. python docs/_ext/first_lines.py demo/run`` draws docs/images/library_map.png anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "library.md"
PICTURE = PAGE.parent / "images" / "library_map.png"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_RUN, _FILE = '"demo/run"', '"map.png"'


def first_lines() -> str:
    """The first program of the page."""
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))[0]


def draw(run: Path, picture: Path) -> str:
    """What the program prints where `run` is the run that it opens, and `picture` the file that it writes."""
    program = first_lines().replace(_RUN, repr(str(run))).replace(_FILE, repr(str(picture)))
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(program, str(PAGE), "exec"), {})  # our own page
    return said.getvalue()


if __name__ == "__main__":
    print(draw(Path(sys.argv[1]), PICTURE), end="")
