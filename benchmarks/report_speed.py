"""The report of 344 participants and 969 scans: time to build it, its size, time until a browser can use it.

    python benchmarks/report_speed.py --output docs/benchmarks/report.md

The run is generated (`benchmarks/report_run.py`), which takes minutes and is not measured; --run FOLDER keeps it there
and uses it again. Limits are those of issue 18: pages in 60 s on two cores; an index of 3 MB that is ready in 1 s, 150
kB a participant; and of issue 6: viewer and explorer in 2 s, in headless Chromium.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from report_run import PEOPLE, SCANS, write_large_run
from sections import arguments_of, show_page, table

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.reports.page.build import build_report

BUILD_SECONDS, INDEX_MB, PERSON_KB, INDEX_SECONDS, READY_SECONDS = 60.0, 3.0, 150.0, 1.0, 2.0
OPENINGS, WORKERS = 5, 2
INTERACTIVE = {
    "report-maps.html": "document.querySelector('.viewer[data-ready]')",
    "report-regions.html": "document.querySelector('.explorer[data-ready]')",
}
"""Pages with interactive parts, and what is there when they answer."""


def main() -> int:
    run = ("--run", {"type": Path, "help": "folder of the generated run; made if it is not there"})
    arguments = arguments_of(__doc__, run, "--output")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("report_speed: no Chromium. Debian: apt-get install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.run or Path(scratch) / "run"
        layout = RunLayout(folder) if folder.is_dir() else write_large_run(folder)
        rows = [*measure_building(layout), *measure_opening(layout, chromium)]
    show_page(markdown(rows), arguments.output)
    return 0


def measure_building(layout: RunLayout) -> list[list[str]]:
    processor = time.process_time()
    build_report(layout)
    own = time.process_time() - processor
    clock = time.perf_counter()
    with open_executor(WORKERS) as executor:
        build_report(layout, executor=executor)
    seconds = time.perf_counter() - clock
    size = layout.report.stat().st_size / 1e6
    pages = [*layout.root.glob("*.html"), *layout.root.glob("pages/*.html")]
    person = statistics.median(page.stat().st_size / 1e3 for page in layout.root.glob("sub-*.html"))
    total = sum(page.stat().st_size for page in pages) / 1e6
    return [
        row(
            f"all pages built by {WORKERS} workers, seconds (clock, start of the workers included)",
            seconds,
            BUILD_SECONDS,
        ),
        row("the same in one process, seconds of the processor", own, BUILD_SECONDS),
        row("index, MB", size, INDEX_MB),
        row("page of a participant, kB, median (the generated run has no pictures of scans)", person, PERSON_KB),
        [f"all {len(pages)} pages, MB", f"{total:.0f}", "", ""],
    ]


def measure_opening(layout: RunLayout, chromium: str) -> list[list[str]]:
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for file, there in {layout.report.name: "true", **INTERACTIVE}.items():
            opened = [_open(browser, layout.root / file, there) for _ in range(OPENINGS + 1)][1:]  # the first one warms
            read, ready, processor = (statistics.median(times) for times in zip(*opened, strict=True))
            limit = READY_SECONDS if file in INTERACTIVE else INDEX_SECONDS
            rows.append(row(f"{file} opened and read (DOMContentLoaded), seconds, median of {OPENINGS}", read, limit))
            if file in INTERACTIVE:
                rows.append(row(f"{file} answers, seconds, median", ready, limit))
                rows.append(row(f"{file}: processor of its main thread until then, seconds", processor, limit))
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


def row(what: str, value: float, limit: float) -> list[str]:
    return [what, f"{value:.1f}", f"{limit:g}", "yes" if value <= limit else "no"]


def markdown(rows: list[list[str]]) -> str:
    lines = [
        "# Speed of the report",
        "",
        f"`python benchmarks/report_speed.py` on {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}: a generated run of {PEOPLE} participants and {SCANS} scans at 1 mm, six maps, "
        "136 regions. Load of the machine over the last minute when done: "
        f"{os.getloadavg()[0]:.1f}; other work makes the clock longer, and the seconds of the processor a little. "
        "Headless Chromium draws by software.",
        "",
        *table(["what", "measured", "limit", "within"], rows),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
