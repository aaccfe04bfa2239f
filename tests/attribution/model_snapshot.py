"""Everything of a model and of PyTorch that explaining could change, copied so that it can be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    """State bit for bit, modes, hooks, gradients, and PyTorch's global switches."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "state": {name: value.detach().clone().numpy().tobytes() for name, value in model.state_dict().items()},
        "storage": [p.data_ptr() for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "grad": [None if p.grad is None else p.grad.clone().numpy().tobytes() for p in model.parameters()],
        "training": [m.training for m in model.modules()],
        "hooks": [len(getattr(m, kind)) for m in model.modules() for kind in hooks],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "switches": (
            torch.is_grad_enabled(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.is_autocast_enabled("cpu"),
        ),
        "random": torch.random.get_rng_state().numpy().tobytes(),
    }
