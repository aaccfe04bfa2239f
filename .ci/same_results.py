"""Does this tree give what that tree gave? ``record`` runs a small cohort with a tree, ``compare`` names differences.

    python .ci/same_results.py record TREE OUT [--from OLD]
    python .ci/same_results.py compare OLD NEW
    python .ci/same_results.py codes OLD NEW

A record holds a cohort of 14 people at 4 mm, its run with heatlas evaluate, heatlas apply to some of them, and what
the program says of itself: help of every command, printed pages, public names. With ``--from OLD`` the tree goes on
with a copy of OLD's run: what it does again is a difference then, and the rest is compared all the same. Differences
that are meant stand in same_results.toml, each with its reason: [[expected]] with `place` (a pattern of paths), `what`
(a regular expression; none: all) and `why`. ``codes`` compares, and where nothing differs that nobody meant, writes
pipeline/run/work/same_code.tsv: the digests of the code that did the same work in both trees.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pandas as pd

SETTINGS = """
seed = 5
cohort = { folds = 2, validation_fraction = 0.4 }
model = { channels = [4, 8], pools = [3, 4], hidden_units = 8 }
training = { learning_rate = 1e-3, max_epochs = 3, min_epochs = 2, patience = 1, repeats = 2 }
attribution.betas = [0.0, 1.0]
registration = { transform = "antsRegistrationSyNQuick[s]", resolution_mm = 4.0, brain_extraction = "none", \
bias_correction = false }
evaluation = { scans = 1, steps = 4, samples = 1, shift = 1, shifts = [0, 1], grids = { per_class = 1, steps = 4 }, \
pairs = ["Hippocampus + Amygdala"] }
[statistics]
permutations = 99
bootstrap_samples = 100
associations.metrics = ["density", "gain"]
group_comparisons.metrics = ["density", "sum", "gain", "share"]
normative = { min_freedom = 2, resamples = 20 }
shortcuts = { permutations = 99, min_participants = 2 }
subgroups.minimum_participants = 2
progression.min_participants = 5
voxelwise.permutations = 99
"""
"""Every stage in seconds, and limits so low that few people are enough for every analysis."""
COHORT = """
import pathlib, heatlas.pipeline.cohort.demo.cohort as demo
demo.write_demo_cohort(pathlib.Path({!r}), seed=5, participants=14, resolution_mm=4.0)
"""
ASK = """
import contextlib, inspect, io, json, re, runpy, sys
import heatlas
from heatlas.pipeline.run.work.digests import _module_code, text_digest
try:
    from heatlas.pipeline.run.work.digests import import_closure
except ImportError:  # trees before the two were merged
    from heatlas.pipeline.run.work.imports import import_closure

def printed(module, *words):
    sys.argv = [module, *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    return out.getvalue()

def helps(*command):
    text = said["help/" + "-".join(("heatlas", *command))] = printed("heatlas", *command, "--help")
    for name in re.findall(r"^ {4}([a-z][\\w-]*)(?: {2,}|$)", text, re.MULTILINE):
        helps(*command, name)

said = {}
helps()
said["help/heatlas-bids"] = printed("heatlas.workflows.bids_app", "--help")
for name in heatlas.__all__:
    value = getattr(heatlas, name)
    inside = [one for one in vars(value) if one[0] != "_"] if inspect.isclass(value) else []
    members = {name: value} | {f"{name}.{one}": inspect.getattr_static(value, one) for one in inside}
    lines = [full + (str(inspect.signature(one)) if callable(one) else "") for full, one in members.items()]
    said["public/" + name] = "\\n".join(lines)
for name in ("settings", "tables", "commands", "glossary"):  # tests hold these pages equal to what the code prints
    said["printed/" + name] = open(f"docs/{name}.md").read()
for module in ("registration.scan_jobs", "training.stage", "explaining.explained_scan"):
    names = sorted(import_closure(["heatlas.pipeline." + module]))
    said["code/" + module] = "\\n".join(f"{name} {text_digest(_module_code(name))[:6]}" for name in names)
json.dump(said, sys.stdout)
"""
TRACE = """
import json, os
from heatlas.pipeline.run.work import digests
key = digests.unit_key

def traced(inputs, parameters, *code):
    work = digests.text_digest(digests.canonical_json([dict(inputs), parameters]))
    modules = sorted({part if isinstance(part, str) else part.__module__ for part in code})
    row = [work, modules, digests._modules_digest(tuple(modules)), digests.code_digest(*code)]
    with open(os.environ["TRACED"], "a") as file:
        file.write(json.dumps(row) + "\\n")
    return key(inputs, parameters, *code)

digests.unit_key = traced
"""
"""Notes for every unit of work which code does it."""
EXPECTED = Path(__file__).with_suffix(".toml")
CODES = Path(__file__).parents[1] / "pipeline" / "run" / "work" / "same_code.tsv"
FOLDERS = ("cohort", "run", "applied")
BENCH = ["--plant", "--quick", "--parts", "faithfulness", "interactions"]
TIMES = {"seconds"}  # columns that no two runs share
LEFT_OUT = {
    "run.log",
    "evaluation.log",
    "digests.json",
    "receipts",
    "provenance.json",
}  # when, where and with what a run was made
MASKED = {
    r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\d(T[\d:.+Z]+)?": "DATE",
    r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b": "DIGEST",
    r'"seconds": [\d.e-]+': '"seconds": TIME',
    r'(?<=networks_of = ")[^"]+': "FOLDER",
}
TEXTS = (".json", ".html", ".toml", ".md", ".bib", ".txt", ".csv", "")


def record(tree: Path, out: Path, origin: Path | None, through: list[str], quick: bool) -> None:
    """Write to `out` what the code of `tree` gives, by this Python; `through`: a command that runs the long ones."""
    fixed = {"PYTHONPATH": f"{out / 'trace'}:{tree}", "TRACED": str(out / "codes.jsonl"), "COLUMNS": "100"}
    fixed |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def do(*words: str | Path) -> str:
        command, environment = [*through, sys.executable, *map(str, words)], os.environ | fixed
        answer = subprocess.run(command, cwd=tree, env=environment, check=False, text=True, capture_output=True)
        if answer.returncode:
            sys.exit(f"{tree}: {shlex.join(command)}\n{answer.stdout}{answer.stderr}")
        return answer.stdout

    (out / "trace").mkdir(parents=True, exist_ok=True)
    (out / "trace" / "sitecustomize.py").write_text(TRACE)  # Python imports it first
    (out / "origin.txt").write_text(str(origin or ""))
    (out / "said.json").write_text(do("-c", ASK))
    if quick:
        return
    cohort, run, settings = out / "cohort", out / "run", out / "settings.toml"
    settings.write_text(SETTINGS)
    if origin is None:
        do("-c", COHORT.format(str(cohort)))
    elif not cohort.exists():
        for name in reversed(FOLDERS):
            shutil.copytree(origin / name, out / name, dirs_exist_ok=True)
    labels = ["--participant-label", *(path.name for path in sorted((cohort / "ADNI").glob("9*"))[1:9:2])]
    again = ("-m", "heatlas", "run", cohort, run, "--config", settings, "--n-procs", "1")
    do(*again, "--stop-after", "statistics")
    do("-m", "heatlas", "evaluate", run, "--n-procs", "1", *BENCH)
    do(*again)
    do("-m", "heatlas", "apply", run, cohort, out / "applied", "--n-procs", "1", "--new-people", *labels)


def visible(page: str) -> str:
    """Text of a page, a line for each piece, with targets of links and words of pictures."""

    def words(tag: re.Match[str]) -> str:
        named = re.findall(r'\b(alt|title|aria-label|href)="([^"]*)"', tag[0])
        return "\n".join(["", *(f"[{name}] {value}" for name, value in named if not value.startswith("data:")), ""])

    pieces = re.sub(r"<[^>]*>", words, re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)).split("\n")
    return "\n".join(" ".join(html.unescape(piece).split()) for piece in pieces if piece.strip())


def lines_of(path: Path) -> list[str]:
    """What a text says, line by line, without dates and digests."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        text = visible(text)
    elif path.suffix == ".json":
        text = json.dumps(json.loads(text), indent=0, ensure_ascii=False)
    for pattern, word in MASKED.items():
        text = re.sub(pattern, word, text)
    return text.splitlines()


def changed_lines(old: list[str], new: list[str]) -> Iterator[str]:
    """Lines that went and came; of one that changed, the part from 40 letters before the change on."""
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind != "equal":
            alike = len(os.path.commonprefix([old[a], new[c]])) if b - a == d - c == 1 else 0  # noqa: RUF071
            signed = [("-", line) for line in old[a:b]] + [("+", line) for line in new[c:d]]
            yield from (sign + line[max(alike - 40, 0) :][:300] for sign, line in signed)


def changed_table(old: Path, new: Path) -> Iterator[str]:
    """Columns of a table that differ, with the first row that does."""
    before, after = (pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False) for path in (old, new))
    yield from changed_lines([*map(str, before)], [*map(str, after)])
    if len(before) != len(after):
        yield f"{len(before)} rows, now {len(after)}"
        return
    for name in (name for name in before if name in after and name not in TIMES):
        pairs = [(row, was, now) for row, was, now in zip(count(2), before[name], after[name]) if was != now]
        for row, was, now in pairs[:1]:
            yield f"{name}: {len(pairs)} of {len(before)} rows, first line {row}: {was!r}, now {now!r}"


def changed_file(old: Path, new: Path) -> Iterable[str]:
    """What differs between two files that may be missing."""
    if not (old.exists() and new.exists()):
        return ["gone" if old.exists() else "new"]
    if old.is_dir() or old.read_bytes() == new.read_bytes():
        return []
    if old.suffix == ".tsv":
        return changed_table(old, new)
    return changed_lines(lines_of(old), lines_of(new)) if old.suffix in TEXTS else ["other bytes"]


def differences(old: Path, new: Path) -> Iterator[tuple[str, str]]:
    """Place and kind of every difference between two records."""
    before, after = (json.loads((root / "said.json").read_text()) for root in (old, new))
    for place in sorted({*before, *after}):
        texts = (said.get(place, "").splitlines() for said in (before, after))
        yield from ((place, line) for line in changed_lines(*texts))
    folders = [name for name in FOLDERS if (old / name).is_dir() and (new / name).is_dir()]
    files = {path.relative_to(root) for root in (old, new) for name in folders for path in (root / name).rglob("*")}
    for path in sorted(path for path in files if not {*path.parts} & LEFT_OUT):
        yield from ((path.as_posix(), what) for what in changed_file(old / path, new / path))
    yield from changed_receipts(old, new, [path for path in sorted(files) if "receipts" in path.parts])


def changed_receipts(old: Path, new: Path, paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Stages whose keys differ or, in a run that was OLD's, whose work was done again."""
    goes_on = (new / "origin.txt").read_text() == str(old)
    stages: dict[Path, list[bool]] = defaultdict(list)
    for path in (path for path in paths if (old / path).is_file()):
        was, now = (json.loads(file.read_text()) if file.is_file() else {} for file in (old / path, new / path))
        stage = path if path.parent.name == "steps" else path.parent
        stages[stage].append(was["key"] != now.get("key") or (goes_on and was.get("seconds") != now.get("seconds")))
    for stage, changed in stages.items():
        if any(changed):
            how = "done again" if goes_on else "keys differ"
            yield stage.as_posix(), f"{sum(changed)} of {len(changed)} {how}"


def compare(old: Path, new: Path, expected: Path, most: int) -> int:
    """Print the differences, those that are meant with their reason; 1 if there are others."""
    known = tomllib.loads(expected.read_text(encoding="utf-8")).get("expected", [])
    counts: Counter[tuple[str, str]] = Counter()
    for place, what in differences(old, new):  # people, sessions and regions are told together
        counts[re.sub(r"(sub|ses|region)-[\w-]+?(?=[_/.]|$)", r"\1-*", place), what] += 1
    unmeant: dict[str, list[str]] = defaultdict(list)
    met: Counter[str] = Counter()
    for (place, what), times in counts.items():
        rules = (rule for rule in known if fnmatch.fnmatchcase(place, rule["place"]))
        if rule := next((rule for rule in rules if re.search(rule.get("what", ""), what)), None):
            met[rule["why"]] += times
        else:
            unmeant[place].append(what + (f"  ({times} files)" if times > 1 else ""))
    for why in dict.fromkeys(rule["why"] for rule in known):
        print(f"meant, {met[why]} times: {why}")
    for place, lines in unmeant.items():
        more = [f"and {len(lines) - most} more (--most)"] * (len(lines) > most)
        print(place, *lines[:most], *more, sep="\n    ")
    print(f"{sum(map(len, unmeant.values()))} differences that nobody meant, in {len(unmeant)} places")
    return 1 if unmeant else 0


def write_codes(old: Path, new: Path, path: Path) -> int:
    """Write a row for code that did in `new` what other code did in `old`."""
    from heatlas.pipeline.run.work import digests

    columns = ["work", "modules", "digest", "in_keys"]
    before, after = (pd.read_json(root / "codes.jsonl", lines=True).set_axis(columns, axis=1) for root in (old, new))
    after["modules"] = after["modules"].map(" ".join)
    both = after.merge(before[["work", "in_keys"]], on="work", suffixes=("", "_earlier"))
    rows = both[["modules", "digest", "in_keys_earlier"]].set_axis(["modules", "digest", "earlier"], axis=1)
    rows = rows.drop_duplicates().query("digest != earlier").sort_values(["modules", "earlier"])
    certain = rows[~rows.duplicated("digest", keep=False)]  # else two earlier codes did it: which one, nobody knows
    is_now = [
        digests._modules_digest(tuple(modules.split())) == digest for _, modules, digest, _ in certain.itertuples()
    ]
    certain = certain[is_now]  # the tree may have changed since it was recorded
    certain.to_csv(path, sep="\t", index=False)
    print(f"{len(certain)} rows in {path}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("command", choices=("record", "compare", "codes"))
    parser.add_argument("first", type=lambda text: Path(text).resolve(), metavar="TREE|OLD")
    parser.add_argument("second", type=lambda text: Path(text).resolve(), metavar="OUT|NEW")
    parser.add_argument("--from", dest="origin", type=lambda text: Path(text).resolve(), metavar="OLD")
    parser.add_argument("--through", type=shlex.split, default=[], metavar="COMMAND", help="runs the long commands")
    parser.add_argument("--quick", action="store_true", help="no run: only what the program says of itself")
    parser.add_argument("--most", type=int, default=12, metavar="N", help="lines shown of a place")
    given = parser.parse_args()
    if given.command != "record":
        different = compare(given.first, given.second, EXPECTED, given.most)
        return different if given.command == "compare" or different else write_codes(given.first, given.second, CODES)
    record(given.first, given.second, given.origin, given.through, given.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
