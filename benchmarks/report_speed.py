"""The report of 344 participants and 969 scans: time to build it, its size, time until a browser can use it.

    python benchmarks/report_speed.py --output docs/benchmarks/report.md

The run is generated (`benchmarks/report_run.py`), which takes minutes and is not measured; --run FOLDER keeps it there
and uses it again. Limits are those of issue 6: 60 s on two cores, 15 MB, 2 s in headless Chromium.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from report_run import PEOPLE, SCANS, write_large_run

from pipeline.run.layout.run_layout import RunLayout
from pipeline.run.work.executors import open_executor
from reports.page.build import build_report

BUILD_SECONDS, INDEX_MB, READY_SECONDS = 60.0, 15.0, 2.0
OPENINGS, WORKERS = 5, 2
INTERACTIVE = "document.querySelector('.viewer[data-ready]') && document.querySelector('.explorer[data-ready]')"


@dataclass(frozen=True)
class Measured:
    """What is written down."""

    what: str
    value: str
    limit: str
    within: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of the generated run; made if it is not there")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("report_speed: no Chromium. Debian: apt-get install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.run or Path(scratch) / "run"
        layout = RunLayout(folder) if folder.is_dir() else write_large_run(folder)
        rows = [*measure_building(layout), *measure_opening(layout.report, chromium)]
    text = markdown(rows)
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


def measure_building(layout: RunLayout) -> list[Measured]:
    processor = time.process_time()
    build_report(layout)
    own = time.process_time() - processor
    clock = time.perf_counter()
    with open_executor(WORKERS) as executor:
        build_report(layout, executor=executor)
    seconds = time.perf_counter() - clock
    size = layout.report.stat().st_size / 1e6
    pages = [*layout.root.glob("*.html"), *layout.root.glob("pages/*.html")]
    total = sum(page.stat().st_size for page in pages) / 1e6
    return [
        row(
            f"all pages built by {WORKERS} workers, seconds (clock, start of the workers included)",
            seconds,
            BUILD_SECONDS,
        ),
        row("the same in one process, seconds of the processor", own, BUILD_SECONDS),
        row("index, MB", size, INDEX_MB),
        Measured(f"all {len(pages)} pages, MB", f"{total:.0f}", "", ""),
    ]


def measure_opening(page: Path, chromium: str) -> list[Measured]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        opened = [_open(browser, page) for _ in range(OPENINGS + 1)][1:]  # the first one warms the browser
        browser.close()
    middle = [statistics.median(times) for times in zip(*opened, strict=True)]
    return [
        row(f"opened and read (DOMContentLoaded), seconds, median of {OPENINGS}", middle[0], READY_SECONDS),
        row("viewer and explorer answer, seconds, median", middle[1], READY_SECONDS),
        row("viewer and explorer answer, seconds, slowest", max(times[1] for times in opened), READY_SECONDS),
        row("processor of the page's main thread until then, seconds, median", middle[2], READY_SECONDS),
    ]


def _open(browser: Browser, page: Path) -> tuple[float, float, float]:
    """Seconds from the start of the navigation until the page is read, and until its interactive parts are ready.

    The third is the processor's share of the second: what a machine that has nothing else to do would need at most,
    but for reading the file and unpacking, which have threads of their own.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    tab = context.new_page()
    session = context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto(page.as_uri(), wait_until="commit")
    ready = tab.wait_for_function(f"() => ({INTERACTIVE}) && performance.now()", polling=20).json_value()
    read = tab.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return read / 1000, ready / 1000, metrics["TaskDuration"]


def row(what: str, value: float, limit: float) -> Measured:
    return Measured(what, f"{value:.1f}", f"{limit:g}", "yes" if value <= limit else "no")


def markdown(rows: list[Measured]) -> str:
    lines = [
        "# Speed of the report",
        "",
        f"`python benchmarks/report_speed.py` on {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}: a generated run of {PEOPLE} participants and {SCANS} scans at 1 mm, six maps, "
        "136 regions. Load of the machine over the last minute when done: "
        f"{os.getloadavg()[0]:.1f}; other work makes the clock longer, and the seconds of the processor a little. "
        "Headless Chromium draws by software.",
        "",
        "| what | measured | limit | within |",
        "|---|---|---|---|",
        *(f"| {one.what} | {one.value} | {one.limit} | {one.within} |" for one in rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
