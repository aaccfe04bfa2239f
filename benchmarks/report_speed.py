"""The report of 344 participants and 969 scans: time to build it, its size, time until a browser can use it.

    python benchmarks/report_speed.py --output docs/benchmarks/report.md

The run is as large as the founding study's and generated without an image of a scan, which takes minutes and is not
measured; --run FOLDER keeps it there and uses it again. Its tables have every row that a real run has; statistics are
made by their stage, with few permutations. Mean maps are noise of realistic tails over the whole brain, which
compresses worse than relevance does. Limits are those of issue 18: pages in 60 s on two cores; an index of 3 MB that is
ready in 1 s, 150 kB a participant; and of issue 6: viewer and explorer in 2 s, in headless Chromium.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
from harness import ROOT, arguments_of, show_page, table
from playwright.sync_api import Browser, sync_playwright
from scipy import ndimage

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import load_template
from heatlas.pipeline.cohort.records import ScanTable
from heatlas.pipeline.explaining.stage import CONSERVATION_TABLE
from heatlas.pipeline.regions.ranking import BETA_OVERLAP_TABLE, FINGERPRINTS_TABLE, fingerprint_table, overlap_table
from heatlas.pipeline.regions.tables import RELEVANCE_BILATERAL_TABLE, RELEVANCE_TABLE, bilateral_rows
from heatlas.pipeline.run.config.files import read_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.layout.scan_files import lrp_map_name
from heatlas.pipeline.run.tables import read_table
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.statistics.stage import analyse
from heatlas.reports.page.build import build_report

sys.path.insert(0, str(ROOT / "tests" / "reports"))
from run_factory import RunPlan, make_run

BUILD_SECONDS, INDEX_MB, PERSON_KB, INDEX_SECONDS, READY_SECONDS = 60.0, 3.0, 150.0, 1.0, 2.0
OPENINGS, WORKERS = 5, 2
INTERACTIVE = {
    "report-maps.html": "document.querySelector('.viewer[data-ready]')",
    "report-regions.html": "document.querySelector('.explorer[data-ready]')",
}
"""Pages with interactive parts, and what is there when they answer."""
PEOPLE, SCANS = 344, 969
THREE_VISITS = SCANS - 2 * PEOPLE
RESOLUTION = 1.0
PLANTED = ("Hippocampus", "Amygdala", "Entorhinal area")


def write_large_run(folder: Path) -> RunLayout:
    """Write the run; minutes, nearly all for statistics and mean maps."""
    visits = (3,) * THREE_VISITS + (2,) * (PEOPLE - THREE_VISITS)
    overrides = {"registration": {"resolution_mm": RESOLUTION}, "attribution": {"keep_maps": "group"}}
    plan = RunPlan(until="training", people=PEOPLE // 2, folds=5, visits=visits, overrides=overrides)
    layout = make_run(folder, plan)
    config, predictions = read_config(layout.config), read_table(layout.group / "predictions.tsv")
    names = [*(lrp_map_name(beta) for beta in sorted(config.attribution.betas)), "gb"]
    rng = np.random.default_rng(0)
    _write_relevance(layout, predictions, names, rng)
    _write_mean_maps(layout, predictions, names, rng)
    known = set(predictions["scan_id"])
    scans = [scan for scan in ScanTable.read(layout.root / "scans.tsv").scans if scan.scan_id in known]
    analyse(layout, scans, predictions, config)
    return layout


def _write_relevance(layout: RunLayout, predictions: pd.DataFrame, names: list[str], rng: np.random.Generator) -> None:
    atlas = load_atlas("neuromorphometrics-cat12", load_template(RESOLUTION).grid)
    described = atlas.regions.frame()[["number", "name", "hemisphere", "group"]].rename(columns={"number": "region"})
    voxels = np.bincount(atlas.labels.ravel())
    described["n_voxels"] = voxels[described["region"]]
    rest = {"region": 0, "name": "unlabelled rest", "hemisphere": None, "group": None, "n_voxels": voxels[0]}
    described = pd.concat([pd.DataFrame([rest]), described], ignore_index=True)
    keys = predictions[["participant_id", "session_id", "scan_id", "target"]]
    table = keys.merge(pd.DataFrame({"map": names}), how="cross").merge(described, how="cross")
    strength = np.where(table["group"].isin(PLANTED), 3.0, 1.0) * np.where(table["target"] == 1, 1.5, 1.0)
    table["density"] = 1e-6 * strength * rng.lognormal(0, 0.4, len(table))
    table["sum"], table["evidence"], table["standard_error"] = table["density"] * table["n_voxels"], np.nan, np.nan
    relevance = table[[name for name in RELEVANCE_TABLE.meanings if name in table]]
    RELEVANCE_TABLE.write(layout, relevance)
    bilateral = bilateral_rows(relevance, predictions, "participants")
    written = bilateral[[name for name in RELEVANCE_BILATERAL_TABLE.meanings if name in bilateral]]
    RELEVANCE_BILATERAL_TABLE.write(layout, written)
    FINGERPRINTS_TABLE.write(layout.statistics("fingerprints"), fingerprint_table(bilateral, names))
    BETA_OVERLAP_TABLE.write(layout.statistics("beta_overlap"), overlap_table(bilateral, names[:-1]))
    ledger = keys.drop(columns="target").merge(pd.DataFrame({"map": names[:-1]}), how="cross")
    losses = {"absorbed_by_bias": 0.15, "lost_no_contribution": 0.05, "stabiliser": 0.0, "residual": 0.0}
    CONSERVATION_TABLE.write(layout.group / "conservation.tsv", ledger.assign(start_value=2.0, map_sum=1.8, **losses))


def _write_mean_maps(layout: RunLayout, predictions: pd.DataFrame, names: list[str], rng: np.random.Generator) -> None:
    template = load_template(RESOLUTION)
    inside = template.brain_mask
    smooth = ndimage.gaussian_filter(rng.normal(size=inside.shape).astype(np.float32), 4)[inside]
    smooth /= smooth.std()
    groups = [*predictions["label"].unique(), *predictions["outcome"].unique()]
    for place, (name, group) in enumerate((name, group) for name in names for group in groups):
        values = np.zeros(inside.shape, np.float32)
        noise = rng.normal(size=smooth.size).astype(np.float32)
        values[inside] = 1e-6 * np.exp(smooth + 0.7 * noise) * (1 if place % 3 else np.sign(noise))
        path = layout.group_map(str(group), name)
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(values, template.grid.affine), path)


Measured = list[tuple[str, float, float | None]]
"""What it is, its value and its limit."""


def measure_building(layout: RunLayout) -> Measured:
    processor = time.process_time()
    build_report(layout)
    own = time.process_time() - processor
    clock = time.perf_counter()
    with open_executor(WORKERS) as executor:
        build_report(layout, executor=executor)
    seconds = time.perf_counter() - clock
    pages = [*layout.root.glob("*.html"), *layout.root.glob("pages/*.html")]
    person = statistics.median(page.stat().st_size / 1e3 for page in layout.root.glob("sub-*.html"))
    workers = f"all pages built by {WORKERS} workers, seconds (clock, start of the workers included)"
    return [
        (workers, seconds, BUILD_SECONDS),
        ("the same in one process, seconds of the processor", own, BUILD_SECONDS),
        ("index, MB", layout.report.stat().st_size / 1e6, INDEX_MB),
        ("page of a participant, kB, median (the generated run has no pictures of scans)", person, PERSON_KB),
        (f"all {len(pages)} pages, MB", sum(page.stat().st_size for page in pages) / 1e6, None),
    ]


def measure_opening(layout: RunLayout, chromium: str) -> Measured:
    rows: Measured = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for file, there in {layout.report.name: "true", **INTERACTIVE}.items():
            opened = [_open(browser, layout.root / file, there) for _ in range(OPENINGS + 1)][1:]  # the first one warms
            read, ready, processor = (statistics.median(times) for times in zip(*opened, strict=True))
            limit = READY_SECONDS if file in INTERACTIVE else INDEX_SECONDS
            rows.append((f"{file} opened and read (DOMContentLoaded), seconds, median of {OPENINGS}", read, limit))
            if file in INTERACTIVE:
                rows.append((f"{file} answers, seconds, median", ready, limit))
                rows.append((f"{file}: processor of its main thread until then, seconds", processor, limit))
        browser.close()
    return rows


def _open(browser: Browser, page: Path, there: str) -> tuple[float, float, float]:
    """Seconds from the start of the navigation until the page is read, and until its interactive parts are ready.

    The third is the processor's share of the second: what a machine that has nothing else to do would need at most,
    but for reading the file and unpacking, which have threads of their own.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto(page.as_uri(), wait_until="commit")
    ready = tab.wait_for_function(f"() => ({there}) && performance.now()", polling=20).json_value()
    read = tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return read / 1000, ready / 1000, metrics["TaskDuration"]


def main() -> None:
    arguments = arguments_of(
        __doc__, "--run --output", run={"type": Path, "help": "folder of the generated run; made if it is not there"}
    )
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("report_speed: no Chromium. Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.run or Path(scratch) / "run"
        layout = RunLayout(folder) if folder.is_dir() else write_large_run(folder)
        rows = []
        for what, value, limit in [*measure_building(layout), *measure_opening(layout, chromium)]:
            within = ("", "") if limit is None else (f"{limit:g}", "yes" if value <= limit else "no")
            rows.append([what, f"{value:.1f}", *within])
    text = "\n".join(table(["what", "measured", "limit", "within"], rows))
    show_page(text, arguments.output, "Speed of the report")


if __name__ == "__main__":
    main()
