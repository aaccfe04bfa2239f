"""What keeps a network from being one linear map of its input: constants that it adds.

`bias_terms` looks for them in the modules, `bias_of` measures what they add to an answer, ``b(x) = y - W(x) x``.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from heatlas.pipeline.models.dynamic import Value, dynamic_weights
from heatlas.pipeline.run.errors import UsageError
from heatlas.studies.dynamic import RUNNING, DynamicNorm

FACTORS = ("weight", "running_var")
"""Names of parameters and statistics that multiply."""
SLOPES = (nn.PReLU,)
"""Modules whose only parameter is a slope."""


def bias_terms(model: nn.Module) -> tuple[str, ...]:
    """Every constant that a network adds, by the name of its parameter or statistic and why it counts.

    Found are biases of any layer, running means that are subtracted, and trained tensors that are no layer's weight,
    such as class tokens and positions. Not counted are the logit bias, which is known, and constants that are not
    trained, such as the positions of a vision transformer, whose share is explained apart.

    Examples
    --------
    >>> bias_terms(nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Conv3d(2, 1, 1, bias=False)))
    ('0.bias: bias of Conv3d',)
    """
    return tuple(
        f"{f'{place}.' if place else ''}{found}" for place, module in model.named_modules() for found in _own(module)
    )


def _own(module: nn.Module) -> Iterator[str]:
    kind = type(module).__name__
    for name, _ in module.named_parameters(recurse=False):
        if "bias" in name:
            yield f"{name}: bias of {kind}"
        elif name.rpartition("_")[2] not in FACTORS and not isinstance(module, SLOPES):
            yield f"{name}: a trained constant of {kind}"
    subtracts = isinstance(module, DynamicNorm) and module.kind in RUNNING and module.centred
    if subtracts or (isinstance(module, _BatchNorm) and module.running_mean is not None):
        yield f"running_mean: {kind} subtracts a running mean"


def require_bias_free(model: nn.Module) -> None:
    """Refuse a network whose maps cannot add up to its logits.

    Raises
    ------
    UsageError
        Naming every constant.
    """
    found = bias_terms(model)
    if found:
        raise UsageError(f"the network adds constants that no voxel carries: {'; '.join(found)}. Remove them.")


def bias_of(model: nn.Module, value: Value, features: Tensor) -> Tensor:
    """What a value owes to constants, (B,): ``value(x) - W(x) x``; 0 for a bias-free network."""
    weights = dynamic_weights(model, value, features)
    return value(features).detach() - (weights * features).flatten(1).sum(1)
