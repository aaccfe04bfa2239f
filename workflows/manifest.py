"""``heatlas manifest``: export the list of images of a cohort, or rebuild a cohort from such a list."""

from __future__ import annotations

from heatlas.pipeline.cohort.reading import read_cohort
from heatlas.pipeline.cohort.sharing.manifest import make_manifest
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError, UsageError
from heatlas.pipeline.run.layout.private_paths import without_home
from heatlas.workflows.commands import ManifestExport
from heatlas.workflows.settings import selection_of, settings_of


def manifest_command(options: ManifestExport) -> int:
    """Write the manifest of the scans that a run would use."""
    config = settings_of(options)
    if options.anonymise is not None:
        raise UsageError("manifest export: a manifest needs the real ids; leave --anonymise out.")
    if options.file.suffix != ".tsv":
        raise UsageError(f"{options.file}: a manifest is a table; give a name that ends in .tsv.")
    if options.file.resolve().is_relative_to(options.input.resolve()):
        raise UsageError(f"{options.file}: lies inside the input folder, which is never written to.")
    cohort = read_cohort(options.input, config.cohort, config.seed, selection_of(options, config, []))
    kept = cohort.table.kept
    if not kept:
        raise BadInputError(f"{without_home(cohort.root)}: no scan can be used; heatlas check says why.")
    manifest = make_manifest(cohort.root, kept, options.ids_only)
    try:
        manifest.write(options.file)
    except OSError as error:
        raise UsageError(f"{options.file}: cannot write there ({error.strerror}).") from error
    print(f"{len(kept)} scans of {len({scan.participant_id for scan in kept})} participants: {options.file}")
    print(f"digest of the cohort: {manifest.digest}")
    return EXIT_OK
