"""``heatlas figures``: the figures of a finished run as files for publication."""

from __future__ import annotations

import argparse

from heatlas.pipeline.run.errors import EXIT_OK, EXIT_SOME_FAILED, UsageError
from heatlas.pipeline.run.layout.folder import read_run_config, read_run_input
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.work.executors import open_executor
from heatlas.pipeline.run.work.lock import require_no_links_out
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.page.publication import write_figures


def figures_command(arguments: argparse.Namespace) -> int:
    """Write all figures of a run in the formats asked for; the run itself is only read."""
    layout = RunLayout(arguments.out.resolve())
    source = read_run_input(layout).input
    config = read_run_config(layout)
    if arguments.to is None:
        require_no_links_out(layout.root)
    folder = (arguments.to or layout.figures / "publication").resolve()
    if folder.is_relative_to(source) and not folder.is_relative_to(source / "derivatives"):
        raise UsageError(f"--to {arguments.to}: lies inside the input {source}, which is never written to.")
    gallery = Gallery(folder, tuple(dict.fromkeys(arguments.format)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_executor(arguments.n_procs, arguments.executor, layout.parsl_logs, config.cluster) as executor:
            faults = write_figures(layout, gallery, executor)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write figures there ({error.strerror}).") from error
    for fault in faults:
        print(fault)
    print(f"{len([path for path in folder.iterdir() if path.suffix[1:] in gallery.forms])} figures: {folder}")
    return EXIT_SOME_FAILED if faults else EXIT_OK
