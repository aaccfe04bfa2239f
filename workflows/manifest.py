"""``heatlas manifest``: export the list of images of a cohort, or rebuild a cohort from such a list."""

from __future__ import annotations

import argparse

from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.sharing import make_manifest
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.private_paths import without_home
from heatlas.workflows.check import check_command
from heatlas.workflows.settings import selection_of, settings_of


def manifest_command(arguments: argparse.Namespace) -> int:
    """``heatlas manifest export INPUT FILE``, or ``heatlas manifest import FILE INPUT``, a check with a manifest."""
    return _export(arguments) if arguments.action == "export" else check_command(arguments)


def _export(arguments: argparse.Namespace) -> int:
    """Write the manifest of the scans that a run would use."""
    config = settings_of(arguments)
    if arguments.anonymise is not None:
        raise UsageError("manifest export: a manifest needs the real ids; leave --anonymise out.")
    if arguments.file.suffix != ".tsv":
        raise UsageError(f"{arguments.file}: a manifest is a table; give a name that ends in .tsv.")
    if arguments.file.resolve().is_relative_to(arguments.input.resolve()):
        raise UsageError(f"{arguments.file}: lies inside the input folder, which is never written to.")
    cohort = read_cohort(arguments.input, config.cohort, config.seed, selection_of(arguments, config, []))
    kept = cohort.table.kept
    if not kept:
        raise BadInputError(f"{without_home(cohort.root)}: no scan can be used; heatlas check says why.")
    manifest = make_manifest(cohort.root, kept, arguments.ids_only)
    try:
        manifest.write(arguments.file)
    except OSError as error:
        raise UsageError(f"{arguments.file}: cannot write there ({error.strerror}).") from error
    print(f"{len(kept)} scans of {len({scan.participant_id for scan in kept})} participants: {arguments.file}")
    print(f"digest of the cohort: {manifest.digest}")
    return EXIT_OK
