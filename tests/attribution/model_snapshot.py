"""Everything of a model and of PyTorch that explaining could change, copied so that it can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    """State bit for bit, modes, hooks, gradients, and PyTorch's global switches."""
    tensors = [*model.parameters(), *model.buffers()]
    return {
        "state": {name: value.detach().clone().numpy().tobytes() for name, value in model.state_dict().items()},
        "tensors": [(id(one), one.data_ptr(), one.requires_grad, one._version) for one in tensors],
        "grad": [None if p.grad is None else p.grad.clone().numpy().tobytes() for p in model.parameters()],
        "modules": [(name, type(m).__name__, m.training, sorted(vars(m))) for name, m in model.named_modules()],
        "hooks": [len(own) for m in model.modules() for kind, own in vars(m).items() if kind.endswith("_hooks")],
        "switches": (
            torch.is_grad_enabled(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.enabled,
            torch.is_autocast_enabled("cpu"),
        ),
        "random": torch.random.get_rng_state().numpy().tobytes(),
    }
