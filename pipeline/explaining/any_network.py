"""Explain any network of PyTorch on any image: ``heatlas.explain``, and three deprecated functions of single methods.

No run and no files are needed. What is explained is a copy of the network (`pipeline.models.foreign.adapted`), by the
same methods and checks as in a run.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from tqdm import tqdm

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.spaces import Grid
from heatlas.pipeline.attribution.entry import Entry, RunContext
from heatlas.pipeline.attribution.method_settings import typed_settings
from heatlas.pipeline.attribution.methods import attribute_all
from heatlas.pipeline.attribution.network_view import StartValue, split_layers
from heatlas.pipeline.attribution.records import Attribution
from heatlas.pipeline.attribution.reference.references import Reference
from heatlas.pipeline.attribution.registry import METHODS, find_method
from heatlas.pipeline.explaining.explained_image import ATLAS, Explained, explained
from heatlas.pipeline.explaining.given_image import (
    GivenImage,
    Image,
    Others,
    WithOthers,
    by_contract,
    fixed_inputs,
    given_controls,
    given_image,
)
from heatlas.pipeline.models.contract import StagedModel
from heatlas.pipeline.models.families.foreign import Feeding
from heatlas.pipeline.models.families.registry import FAMILIES
from heatlas.pipeline.models.foreign.adapted import ForeignNetwork, Meaning, OutputForm, adapted, asked, weights_of
from heatlas.pipeline.models.foreign.described import read_description
from heatlas.pipeline.regions.packed_atlas import PackedAtlas
from heatlas.pipeline.run.config.ranges import require_arguments
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.host import on_host
from heatlas.pipeline.run.work.progress import duration

_SECONDS_UNTIL_COUNTED = 5.0
_MOST_MISSING = 0.5
"""Share of the explained value that may be missing in a map before it is said."""


def explain(
    network: nn.Module,
    image: Image,
    method: str = "expected-gradients",
    *,
    target: int | None = None,
    reference: Sequence[Image] = (),
    others: Others = (),
    stage: int | str | None = None,
    start: StartValue | None = None,
    settings: Mapping[str, Any] | None = None,
    output: Meaning = "auto",
    output_item: str | int = "",
    bins: Sequence[float] = (),
    contract: str | Path | None = None,
) -> Explained:
    """Explain what any network answers to an image.

    Parameters
    ----------
    network : torch.nn.Module
        Takes (1, C, D, H, W) and gives one row of numbers. Not changed: a copy in evaluation mode is explained.
        ``heatlas.explain("scan.nii.gz", network="oasis1-ad")`` takes the name of a network too (`heatlas networks`, or
        a folder of ``heatlas export``): the scan is registered, and compared with the mean of its controls.
    image : path, nibabel image, array or tensor
        With the intensities, grid and orientation that the network was trained with, (D, H, W) or (C, D, H, W); the
        channels of a file are its last axis.
    method : str
        One of ``heatlas.methods()``.
    target : int, optional
        Output unit; by default the largest.
    reference : sequence of images
        Controls that the image is compared with, of methods on a reference. Without them, those methods refuse.
    others : sequence, or mapping of str
        What the network takes after the image, as ``[age]``, or by name, as ``{"age": 71}``: numbers, which it gets as
        floats of (1, 1), or arrays and tensors of one row, as ``torch.tensor([2])`` for an index. They are held fixed,
        for the reference too.
    stage : int or str, optional
        Where the map is made: 0 for the input, or the name of a layer; by default where the method usually is.
    start : {"logit", "probability", "evidence"}, optional
        What is explained; by default what suits the method.
    settings : mapping, optional
        Of the method, as ``{"samples": 200}``.
    output, output_item, bins
        What the network answers; see `pipeline.models.foreign.adapted.OutputForm`.
    contract : path, optional
        Description file that says how the network was fed (docs/howto/feed_a_public_network.md): image and reference
        are brought onto its grid and scale, and it says what the network answers. The map lies on that grid, in the
        millimetres of the image. Without it the image is given as it is, which a warning says of files.

    Returns
    -------
    Explained

    Raises
    ------
    UsageError
        For a method that is unknown, not defined for the network, or lacks its reference.
    BadInputError
        For an image that cannot be read or that the network does not take.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> volume, control = torch.rand(8, 9, 10), torch.rand(8, 9, 10)
    >>> found = explain(network, volume, "deeplift", reference=[control])
    >>> found.map.shape, abs(found.missing) < 1e-6
    ((8, 9, 10), True)
    """
    require_arguments(
        network=network, image=image, method=method, target=target, reference=reference, stage=stage, start=start,
        settings=settings, output=output, output_item=output_item, bins=bins, contract=contract,
    )  # fmt: skip
    entry = find_method(method, "method")
    form, feeding = OutputForm(output, str(output_item), tuple(map(float, bins))), None
    if contract is not None:
        described = read_description(contract)
        form, feeding = described.form if form == OutputForm() else form, described.settings.feeding
    elif not isinstance(network, StagedModel) and not isinstance(image, np.ndarray | Tensor):
        warnings.warn(
            f"network {type(network).__name__}: nothing says how it was fed in training, so it gets the image as "
            "stored; contract=FILE.toml says it.",
            stacklevel=3,
        )
    with _undisturbed():
        given = given_image(image, weights_of(network))
        given = given if feeding is None else by_contract(given, feeding)
        model = _model(network, given.volume, others, form)
        reply = model.answer if isinstance(model, ForeignNetwork) and model is not network else None
        asked_stage = entry.stage_of(model) if stage is None else stage if isinstance(stage, str) else int(stage)
        reply = asked(model, given.volume) if reply is None else reply
        unit = int(on_host(reply[0].argmax())) if target is None else int(target)
        context = _context(entry, given, reference, feeding)
        arrays = np.generic | np.ndarray
        values = {name: one.tolist() if isinstance(one, arrays) else one for name, one in (settings or {}).items()}
        built = entry.build(typed_settings(method, entry.record, values, "settings"), context)
        asked_start: StartValue = start or ("evidence" if entry.usual_start == "evidence" else "logit")
        if isinstance(asked_stage, str):
            _require_whole(model, given.volume, asked_stage, reply[0])
        with _passes_counted(model, method):
            answer, *more = attribute_all(model, given.volume, unit, built, asked_stage, asked_start)
    if more:
        raise UsageError(f"settings: {method} makes {len(more) + 1} maps with them; give one value, as beta = 0.5.")
    if not on_host(answer.values).any():
        _warn_of_nothing(answer, given, context.reference)
    elif answer.sign is not None and float(on_host(answer.sign[0])) < 0:
        warnings.warn(_turned(answer, asked_start), stacklevel=3)
    found = explained(answer, entry.name, given, getattr(model, "others", {}), bool(getattr(model, "bins", ())))
    for text in _doubts(found):
        warnings.warn(text, stacklevel=3)
    return found


def prepare(
    network: nn.Module,
    image: Image,
    *,
    others: Others = (),
    output: Meaning = "auto",
    output_item: str | int = "",
    bins: Sequence[float] = (),
) -> ForeignNetwork:
    """A network made ready once, for many images: `explain` takes what it gives without copying and checking it again.

    Parameters
    ----------
    network : torch.nn.Module
        Not changed; later changes of its weights do not reach what was prepared.
    image : path, nibabel image, array or tensor
        One that it takes; all images must have its grid.
    others, output, output_item, bins
        As of `explain`; they hold for all images.

    Returns
    -------
    ForeignNetwork

    Examples
    --------
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> ready = prepare(network, torch.rand(8, 9, 10))
    >>> [explain(ready, torch.rand(8, 9, 10), "lrp").map.shape for _ in range(2)]
    [(8, 9, 10), (8, 9, 10)]
    """
    require_arguments(network=network, image=image, output=output, output_item=output_item, bins=bins)
    with _undisturbed():
        form = OutputForm(output, str(output_item), tuple(map(float, bins)))
        return _prepared(network, given_image(image, weights_of(network)).volume, others, form)


def _prepared(network: nn.Module, volume: Tensor, others: Others, form: OutputForm) -> ForeignNetwork:
    fixed = fixed_inputs(others, volume)
    whole = WithOthers(network, fixed, isinstance(others, Mapping)) if fixed else network
    model = adapted(whole, volume, None, form)
    model.others, model.bins = fixed, form.bins
    return model


def _model(network: nn.Module, volume: Tensor, others: Others, form: OutputForm) -> StagedModel:
    """The network itself if it is one of ours, which is staged already, or prepared; a copy of any other."""
    plain = not others and form == OutputForm()
    if isinstance(network, ForeignNetwork) and not plain:
        raise UsageError("network: was prepared already; give others, output, output_item and bins to heatlas.prepare.")
    if isinstance(network, StagedModel) and plain and not network.training:
        return network
    return _prepared(network, volume, others, form)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave the modes that the caller works in: inference mode, which allows no gradient, and lower precision."""
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _passes_counted(network: nn.Module, method: str) -> Iterator[None]:
    """Say on standard error how many passes of a network a method took, if it took longer than a few seconds.

    A terminal and a notebook show the count as it grows; in a log, carriage returns would fill the line.
    """
    layers = [layer for layer in network.modules() if next(layer.parameters(recurse=False), None) is not None]
    passes, began = 0, time.monotonic()
    still = not (sys.stderr.isatty() or "ipykernel" in sys.modules)
    shown = "{desc}: pass {n_fmt} of the network, {elapsed}"
    with tqdm(
        desc=method, bar_format=shown, delay=_SECONDS_UNTIL_COUNTED, mininterval=1, leave=False, disable=still
    ) as bar:

        def count(layer: nn.Module, *_: object) -> None:
            nonlocal passes
            if layer in layers[-1:]:
                passes += 1
                bar.update()

        hook = register_module_forward_hook(count)  # not one of the layer itself, which methods refuse
        try:
            yield
        finally:
            hook.remove()
    if passes and (seconds := time.monotonic() - began) >= _SECONDS_UNTIL_COUNTED:
        taken = counted(passes, "pass", plural="passes")
        print(f"{method}: {taken} of the network in {duration(seconds)}", file=sys.stderr)


def _require_whole(model: StagedModel, volume: Tensor, stage: str, wanted: Tensor) -> None:
    """Refuse a layer at which patches or slices stand in place of the volumes, so that its two sides are no network."""
    before, after = split_layers(model, stage)
    values = volume
    try:
        with torch.no_grad():
            for _, layer in (*before, *after):
                values = layer(values)
    except RuntimeError:
        values = volume
    if values.shape != (1, *wanted.shape) or not torch.allclose(values[0], wanted, rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"stage {stage!r}: taken apart there, the network answers differently (its batch axis holds patches or "
            "slices there); name a layer before or after these."
        )


def _context(entry: Entry, image: GivenImage, reference: Sequence[Image], feeding: Feeding | None) -> RunContext:
    controls = given_controls(reference, image, feeding) if entry.needs_reference else None
    atlas: Any = None
    if entry.needs_atlas:
        if image.nowhere:
            raise UsageError(f"{entry.name}: needs the regions of an atlas, but {image.nowhere}.")
        atlas = PackedAtlas.of(load_atlas(ATLAS, Grid(tuple(image.volume.shape[2:]), image.affine)))  # type: ignore[arg-type]
    return RunContext(atlas, None, controls)


def _warn_of_nothing(answer: Attribution, image: GivenImage, reference: Reference | None) -> None:
    """Say that a map is zero everywhere, and why, as far as that is known."""
    why = "no voxel has a share in the output: the network may round or cut its values, or lose all relevance"
    if reference is not None and bool((reference.volumes == image.volume).all()):
        why = "the image and its reference are the same"
    elif "cam" in answer.method or "relu" in answer.parameters:
        why = "it shows what raises the output alone, and nothing does; input-x-gradient shows both signs"
    warnings.warn(f"{answer.method}: the map is zero everywhere; {why}.", stacklevel=4)


def _doubts(found: Explained) -> list[str]:
    """What makes the sum of a map say little."""
    doubts, error = [], found.attribution.sampling_error
    drawn = 0.0 if error is None else float(on_host(error[0]))
    difference = None if found.reference_value is None else abs(found.value - found.reference_value)
    if difference is not None and abs(drawn) > difference:
        doubts.append(
            f"{found.method}: the points drawn at random miss the sum by {drawn:.2g}, "
            f'more than there is to explain ({difference:.2g}): take more points (settings={{"alphas": …}}).'
        )
    lost = 0.0 if found.reference_value is not None or found.missing is None else found.missing / (found.value or 1.0)
    if _MOST_MISSING < lost < 1:
        doubts.append(
            f"{found.method}: {100 * lost:.0f} % of the explained value stay in biases and layers (found.ledger says "
            "which), so the map shows a small part of the answer."
        )
    return doubts


def _turned(answer: Attribution, start: StartValue) -> str:
    """That negative voxels of a map speak for the output, and what to do."""
    return (
        f"{answer.method}: the {start} of output {answer.target} is {float(on_host(answer.start_value[0])):.3g}, so "
        "the map is turned: its negative voxels speak for this output. Leave target out to explain the largest "
        'output, or compare with controls: method="expected-gradients", reference=[control].'
    )


def methods() -> pd.DataFrame:
    """All methods: name, what each shows, whether it needs a reference, and where its map is made by default.

    Examples
    --------
    >>> bool(methods().set_index("method").loc["deeplift", "needs_reference"])
    True
    """
    rows = [(name, entry.help, entry.needs_reference, entry.usual_stage) for name, entry in sorted(METHODS.items())]
    return pd.DataFrame(rows, columns=["method", "shows", "needs_reference", "made_at"])


def networks() -> pd.DataFrame:
    """All families of networks that Heatlas can build: name, what it is, and the methods that do not explain it.

    Examples
    --------
    >>> networks().set_index("network").loc["resnet10", "not_explained_by"]
    ['cgw1', 'inherent', 'raw-attention', 'rollout', 'vit-cx']
    """
    names, families = list(FAMILIES), FAMILIES.values()
    texts = [(family.settings.__doc__ or "").splitlines()[0] for family in families]
    refused = [sorted(family.refused) for family in families]
    return pd.DataFrame({"network": names, "is": texts, "not_explained_by": refused})


def lrp(
    network: nn.Module,
    image: Image,
    *,
    rules: Literal["founding", "focus", "composite"] = "founding",
    beta: float = 0.0,
    batch_norm: Literal["auto", "fold", "identity"] = "auto",
    **options: Any,
) -> Explained:
    """Layer-wise relevance propagation.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="lrp", settings={...})``.

    Parameters
    ----------
    network, image
        As of `heatlas.explain`.
    rules : {"founding", "focus", "composite"}
        The β-rule everywhere, or a composite of rules; see `pipeline.attribution.lrp.rules`.
    beta : float
        Of the β-rule.
    batch_norm : {"auto", "fold", "identity"}
        Folded into the convolution before it, or passed; "auto", as in a run, folds where the network allows it.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        With the ledger of what each layer passed on and lost.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> lrp(network, torch.rand(8, 9, 10), beta=0.5).map.shape
    (8, 9, 10)
    """
    return _explain(network, image, "lrp", {"rules": rules, "beta": beta, "batch_norm": batch_norm}, options)


def deeplift(
    network: nn.Module,
    image: Image,
    reference: Sequence[Image],
    *,
    compare: Literal["mean", "each"] = "mean",
    **options: Any,
) -> Explained:
    """DeepLIFT by the rescale rule, relative to images of controls.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="deeplift", settings={...})``.

    Parameters
    ----------
    network, image, reference
        As of `heatlas.explain`.
    compare : {"mean", "each"}
        With the mean of the controls, or with each of them, of whose maps it takes the mean.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        The map adds up to ``value - reference_value``.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> abs(deeplift(network, torch.rand(8, 9, 10), [torch.rand(8, 9, 10)]).missing) < 1e-6
    True
    """
    return _explain(network, image, "deeplift", {"compare": compare}, {**options, "reference": reference})


def expected_gradients(
    network: nn.Module, image: Image, reference: Sequence[Image], *, alphas: int = 8, seed: int = 0, **options: Any
) -> Explained:
    """Expected gradients, relative to images of controls.

    .. deprecated:: 0.1.0
        Use ``heatlas.explain(network, image, method="expected-gradients", settings={...})``.

    Parameters
    ----------
    network, image, reference
        As of `heatlas.explain`.
    alphas : int
        Points on the way from each control; one forward and backward pass each.
    seed : int
        Of the points.
    **options
        ``target``, ``stage``, ``start``, ``others`` and the rest of `heatlas.explain`.

    Returns
    -------
    Explained
        The map adds up to ``value - reference_value``.

    Examples
    --------
    >>> import torch
    >>> network = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Tanh(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    >>> abs(expected_gradients(network, torch.rand(8, 9, 10), [torch.rand(8, 9, 10)]).missing) < 1e-5
    True
    """
    settings = {"alphas": alphas, "seed": seed}
    return _explain(network, image, "expected-gradients", settings, {**options, "reference": reference})


def _explain(
    network: nn.Module, image: Image, method: str, named: dict[str, Any], options: dict[str, Any]
) -> Explained:
    warnings.warn(
        f'heatlas.{method.replace("-", "_")} will be removed; use heatlas.explain(network, image, method="{method}", '
        "settings={...}).",
        DeprecationWarning,
        stacklevel=3,
    )
    return explain(network, image, method, settings={**(options.pop("settings", None) or {}), **named}, **options)
