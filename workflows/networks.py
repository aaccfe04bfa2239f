"""``heatlas networks``: the networks that can be applied by name, and the model card of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatlas.pipeline.models.named_networks import CARRIED, VARIABLE, named_networks, open_network
from heatlas.pipeline.run.errors import EXIT_OK, BadInputError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.plain_text import counted
from heatlas.workflows.commands import Networks

MEASURES = {
    "auc_within_folds": "area under the curve {:.2f}",
    "mae": "mean absolute error {:.1f}",
    "balanced_accuracy": "balanced accuracy {:.2f}",
}


def networks_command(options: Networks) -> int:
    if options.network is not None:
        card = open_network(options.network).layout.card
        if not card.is_file():
            raise BadInputError(f"{card}: missing. Copy the folder again, or export the run again.")
        print(card.read_text(encoding="utf-8"))
        return EXIT_OK
    found = named_networks()
    for name, folder in found.items():
        print(_line(name, folder))
    if not found:
        print(f"No network has a name. Put folders of heatlas export into a folder, and name it in {VARIABLE}.")
        return EXIT_OK
    print("\nheatlas networks NAME prints the card of one; heatlas apply NAME SCAN OUT applies it. Research only.")
    return EXIT_OK


def _line(name: str, folder: Path) -> str:
    """A network in a line, and whether it learned in another; of one that cannot be read, why."""
    try:
        bundle = open_bundle(folder)
    except BadInputError as error:
        return f"{name}: cannot be used. {error}"
    summary: Mapping[str, Any] = {} if bundle is None else bundle.summary
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    facts = [
        str(summary.get("task", "")),
        counted(summary["people"], "person", plural="people") if "people" in summary else "",
        _accuracy(summary),
        f"{size / 1e6:.1f} MB",
        str(summary.get("licence", "") or "licence: ask who made it"),
        "" if folder.parent == CARRIED else f"in {folder.parent}",
    ]
    line = f"{name}: {'; '.join(filter(None, facts))}"
    return "\n  ".join(filter(None, (line, str(summary.get("learned", "")))))


def _accuracy(summary: Mapping[str, Any]) -> str:
    if not {"estimate", "ci_low", "ci_high"} <= set(summary):
        return ""
    measure = str(summary["measure"])
    form = MEASURES.get(measure, measure.replace("_", " ") + " {:.2f}")
    number = form[form.index("{") :]
    low, high = (number.format(summary[end]) for end in ("ci_low", "ci_high"))
    return f"{form.format(summary['estimate'])} [{low} to {high}]"
