"""The run folder: create it, recognise it, and protect it from mix-ups."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatlas.pipeline.run.config.files import config_to_toml, read_config, toml_value
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import known_json, read_toml
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.private_paths import relative_to_folder
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import write_text


@dataclass(frozen=True)
class RunInput:
    """Input of a run; the ``[run]`` section of its ``config.toml``.

    The path of the input is written relative to the run folder, so that no home folder is named.
    """

    input: Path
    preset: str
    key: str = ""
    """Fingerprint of the secret key of an anonymised run."""
    one_image: bool = False
    """Whether the input may also be a single image."""


def recognise_run_folder(out: Path, source: RunInput) -> RunLayout:
    """Check that a folder may hold this run, without writing to it.

    Raises BadInputError if the input folder is missing or unreadable. Raises UsageError if `out` holds something else,
    belongs to another input, or would be read as part of the input.
    """
    out, root = out.resolve(), source.input.resolve()
    if not (root.is_dir() or (source.one_image and root.is_file())):
        what = "is a file" if root.is_file() else "no such folder"
        either = (
            "the folder of an ADNI or OASIS download, a BIDS or CAPS dataset or FreeSurfer subjects"
            + ", or one NIfTI image" * source.one_image
        )
        raise BadInputError(f"{source.input}: {what}. Give {either}.")
    if out == root or out in root.parents:
        raise UsageError(f"{out}: the output folder must not be or contain the input folder {root}.")
    if root in out.parents and root / "derivatives" not in [out, *out.parents]:
        raise UsageError(f"{out}: lies inside the input folder, which is never written to. Choose a folder elsewhere.")
    layout = RunLayout(out)
    first = layout.lock.name, f".{layout.config.name}."  # begin the names of what is written before all else
    others = [path for path in out.iterdir() if not path.name.startswith(first)] if out.is_dir() else []
    if layout.config.is_file():  # looked for last: another job may have just begun
        known = read_run_input(layout)
        if known.input.resolve() != root:
            raise UsageError(f"{out}: holds a run of another input ({known.input}). Choose another output folder.")
    elif others:
        raise UsageError(f"{out}: is not empty and not a Heatlas run. Choose an empty or new output folder.")
    return layout


def with_registration_seed(config: Config, layout: RunLayout) -> Config:
    """Set the registration seed: that of the run that is continued, else the seed of the run.

    So changing ``seed`` later redoes no registration.
    """
    if config.registration.seed >= 0:
        return config
    begun = read_config(layout.config) if layout.config.is_file() else config
    seed = begun.registration.seed if begun.registration.seed >= 0 else begun.seed
    return dataclasses.replace(config, registration=dataclasses.replace(config.registration, seed=seed))


def prepare_run_folder(out: Path, source: RunInput, config: Config, key: str | None = None) -> RunLayout:
    """Create the run folder, or recognise one of the same input, and write its configuration.

    `key`: secret key of an anonymised run, which keeps a fingerprint of it. Raises BadInputError, UsageError as
    `recognise_run_folder`, or if `out` is a run with other privacy settings or another key, or cannot be written to.
    """
    layout = recognise_run_folder(out, source)
    mark = _require_same_privacy(layout, config, key)
    try:
        text = (
            f"{config_to_toml(config)}\n[run]\ninput = {toml_value(relative_to_folder(source.input, layout.root))}\n"
            f"preset = {toml_value(source.preset)}\n"
        ) + (f"key = {toml_value(mark)}\n" if mark else "")
        write_text(layout.config, text)
        write_text(layout.settings, text)
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({os.strerror(error.errno or 0)}).") from error
    return layout


def _require_same_privacy(layout: RunLayout, config: Config, key: str | None) -> str:
    """Fingerprint of the key; empty without one.

    A run is not continued with other privacy settings or another key: hidden values would appear beside the original
    ones, and each person twice.
    """
    if not layout.config.is_file():
        return "" if key is None else fingerprint(key)
    if read_config(layout.config).privacy != config.privacy:
        raise UsageError(
            f"{layout.root}: this run was begun with other privacy settings. Give --anonymise and --pseudonymise as "
            "then, or choose another output folder."
        )
    known = read_run_input(layout).key
    if key is not None and not is_fingerprint_of(known, key):
        raise UsageError(
            f"{layout.root}: this run was begun with another key. Give --anonymise the file it was begun with, or "
            "choose another output folder."
        )
    return known


def read_run_config(layout: RunLayout) -> Config:
    """Read the configuration of an existing run.

    Raises UsageError if it is damaged, or a setting that affects results was changed after the run.
    """
    config = read_config(layout.config)
    if not layout.settings.is_file():  # written by an earlier version
        return _with_own_body(layout, config)
    made = _results_depend_on(read_config(layout.settings))
    for name, value in _results_depend_on(config).items():
        if value != made[name]:
            raise UsageError(
                f"{layout.config}: {name} = {toml_value(value)}, but the run was made with {toml_value(made[name])}. "
                "Put that back, or give this file to `heatlas run --config`, which redoes what depends on it."
            )
    return _with_own_body(layout, config)


def _with_own_body(layout: RunLayout, config: Config) -> Config:
    """The settings of a run of probes with the architecture of the backbone, which the networks hold in any case."""
    probe: Any = config.model
    if getattr(probe, "body", None) != "":  # no probe, or one that says its backbone
        return config
    for path in sorted(layout.root.glob("models/fold-*/model.json")):
        architecture = known_json(path).get("architecture")
        body = architecture.get("body") if isinstance(architecture, dict) else None
        if isinstance(body, str) and body:
            return dataclasses.replace(config, model=dataclasses.replace(probe, body=body))
    return config


def _results_depend_on(record: Any, where: str = "") -> dict[str, Any]:
    """All settings by name except those of the report and the cluster, which do not affect results."""
    found: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if dataclasses.is_dataclass(value):
            found |= _results_depend_on(value, f"{where}{name}.") if name not in ("report", "cluster") else {}
        else:
            found[where + name] = value
    return found


def read_run_input(layout: RunLayout) -> RunInput:
    """Read the input of a run.

    Raises UsageError if the folder is not a run.
    """
    try:
        section = read_toml(layout.config)["run"]
        return RunInput((layout.root / section["input"]).resolve(), section["preset"], str(section.get("key", "")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{layout.root}: not a Heatlas run (no readable config.toml with a [run] section). Give the OUT of "
            "`heatlas run`; of `heatlas demo OUT` it is OUT/run."
        ) from error


def fingerprint(key: str) -> str:
    """A salted digest of a secret, slow to compute, so that guessing is costly; differs each time.

    >>> is_fingerprint_of(fingerprint("secret"), "secret"), is_fingerprint_of(fingerprint("secret"), "other")
    (True, False)
    """
    salt = secrets.token_hex(16)
    return f"scrypt:{salt}:{_digest(key, salt)}"


def is_fingerprint_of(text: str, key: str) -> bool:
    """Whether a fingerprint was made from this secret; False for any other text."""
    method, _, rest = text.partition(":")
    salt, _, digest = rest.partition(":")
    return method == "scrypt" and hmac.compare_digest(_digest(key, salt).encode(), digest.encode())


def _digest(key: str, salt: str) -> str:
    return hashlib.scrypt(key.encode(), salt=salt.encode(), n=2**15, r=8, p=1, maxmem=2**26, dklen=32).hex()
