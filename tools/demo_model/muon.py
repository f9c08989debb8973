"""The Muon optimizer in F32: torch's own computes in bf16, which many processors only imitate, slowly."""

# mypy: disable-error-code="misc, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5


def orthogonalize(matrix: Tensor) -> Tensor:
    """A matrix of nearly the same singular vectors with all singular values near 1, by Newton and Schulz.

    The coefficients are those of https://github.com/KellerJordan/Muon.
    """
    a, b, c = _QUINTIC
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; steps are as large as AdamW's at the same rate.

    Args:
        weights: matrices.
        lr: the learning rate; `param_groups` hold it.
    """

    def __init__(
        self, weights: Iterable[Tensor], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(weights, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002 - torch's signature
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - momentum)
                update = orthogonalize(weight.grad.lerp(mean, momentum))
                weight.mul_(1 - rate * group["weight_decay"])
                weight.add_(update, alpha=-rate * 0.2 * max(weight.shape) ** 0.5)
