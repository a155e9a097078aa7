"""What training minimises, and how.

Losses on the output matrix are computed in slices, so that no full score matrix is kept. Muon optimizes
hidden matrices, and AdamW everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_ADAM_BETAS = (0.9, 0.95)
_MOMENTUM = 0.95
_ADAM_MATRICES = ("embedding", "output", "router")
_SLICE = 1024


class CrossEntropy(torch.autograd.Function):
    """Mean negative log likelihood of ``targets`` [N] under ``features @ output.T``."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, output: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss and, at once, its gradients."""
        count = features.shape[0]
        d_features = torch.empty_like(features)
        d_output = torch.zeros(output.shape)
        total = torch.zeros(())
        for first in range(0, count, _SLICE):
            rows = features[first : first + _SLICE]
            expected = targets[first : first + _SLICE].unsqueeze(1)
            probability = (rows @ output.T).float().softmax(-1)
            total -= probability.gather(1, expected).clamp_min_(1e-30).log_().sum()
            probability.scatter_add_(1, expected, -torch.ones(expected.shape))
            d_scores = probability.to(rows.dtype)
            torch.mm(d_scores, output, out=d_features[first : first + _SLICE])
            d_output += d_scores.T @ rows
        ctx.save_for_backward(d_features.div_(count), d_output.div_(count))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """Scale the stored gradients."""
        d_features, d_output = ctx.saved_tensors
        return d_features * grads[0].to(d_features.dtype), d_output * grads[0], None


class Divergence(torch.autograd.Function):
    """Mean KL(teacher || student) over positions, from the features of both."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, output: Tensor, teacher: Tensor, teacher_output: Tensor
    ) -> Tensor:
        """Compute the divergence and, at once, the student's gradients."""
        count = features.shape[0]
        d_features = torch.empty_like(features)
        d_output = torch.zeros(output.shape)
        total = torch.zeros(())
        for first in range(0, count, _SLICE):
            rows = features[first : first + _SLICE]
            wanted = (teacher[first : first + _SLICE] @ teacher_output.T).float().log_softmax(-1)
            given = (rows @ output.T).float().log_softmax(-1)
            chance = wanted.exp()
            total += (chance * wanted.sub_(given)).sum()
            d_scores = given.exp_().sub_(chance).to(rows.dtype)
            torch.mm(d_scores, output, out=d_features[first : first + _SLICE])
            d_output += d_scores.T @ rows
        ctx.save_for_backward(d_features.div_(count), d_output.div_(count))
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scale the stored gradients."""
        d_features, d_output = ctx.saved_tensors
        return d_features * grads[0].to(d_features.dtype), d_output * grads[0], None, None


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest (semi-)orthogonal matrices of a stack [S, m, n], by Newton-Schulz iteration."""
    x = matrices.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.mT if tall else x).float()


class Optimizer:
    """Both methods behind one step. The schedule's factor scales every learning rate."""

    def __init__(self, model: nn.Module, rate: float, router_rate: float, decay: float = 0.1) -> None:
        self.rate, self.router_rate, self.decay = rate, router_rate, decay
        self.named = dict(model.named_parameters())
        self.state = {name: self._fresh(name, value) for name, value in self.named.items()}
        self.steps = 0

    @staticmethod
    def _is_hidden_matrix(name: str, value: Tensor) -> bool:
        return value.dim() >= 2 and name.rsplit(".", 1)[-1] not in _ADAM_MATRICES

    def _fresh(self, name: str, value: Tensor) -> list[Tensor]:
        copies = 1 if self._is_hidden_matrix(name, value) else 2
        return [torch.zeros_like(value, requires_grad=False) for _ in range(copies)]

    def share_memory(self) -> None:
        """Let processes that are forked from now on work on the same state."""
        for tensor in [tensor for tensors in self.state.values() for tensor in tensors]:
            tensor.share_memory_()

    def share(self, rank: int, workers: int) -> list[str]:
        """Return the names of the parameters that one of several workers updates."""
        loads, result = [0] * workers, []
        for name in sorted(self.named, key=lambda name: -self.named[name].numel()):
            owner = loads.index(min(loads))
            loads[owner] += self.named[name].numel()
            if owner == rank:
                result.append(name)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to continue later."""
        return {"state": self.state, "steps": self.steps}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.state, self.steps = saved["state"], saved["steps"]

    @torch.no_grad()
    def step(self, names: list[str], gradients: list[dict[str, Tensor]], factor: float) -> None:
        """Update the parameters ``names`` by the mean of ``gradients``, which are used up."""
        self.steps += 1
        for name in names:
            value, gradient = self.named[name], gradients[0][name]
            for other in gradients[1:]:
                gradient.add_(other[name])
            gradient.div_(len(gradients))
            if self._is_hidden_matrix(name, value):
                self._muon(name, value, gradient, self.rate * factor)
            else:
                rate = self.router_rate if name.endswith("router") else self.rate
                self._adam(name, value, gradient, rate * factor)

    def _muon(self, name: str, value: Tensor, gradient: Tensor, rate: float) -> None:
        (momentum,) = self.state[name]
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        update = gradient.lerp(momentum, _MOMENTUM)
        value.mul_(1 - rate * self.decay)
        for part, change in _parts(name, value, update):
            scale = 0.2 * max(part.shape[-2:]) ** 0.5
            part.add_(orthogonalised(change), alpha=-rate * scale)

    def _adam(self, name: str, value: Tensor, gradient: Tensor, rate: float) -> None:
        mean, square = self.state[name]
        mean.lerp_(gradient, 1 - _ADAM_BETAS[0])
        square.lerp_(gradient.square(), 1 - _ADAM_BETAS[1])
        scale = (1 - _ADAM_BETAS[1] ** self.steps) ** 0.5
        rate_now = rate / (1 - _ADAM_BETAS[0] ** self.steps)
        if value.dim() > 1:
            value.mul_(1 - rate * self.decay * 0.1)
        value.addcdiv_(mean, square.sqrt().div_(scale).add_(1e-8), value=-rate_now)


def _parts(name: str, value: Tensor, update: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield stacks of matrices [S, m, n]. The two halves of a gate-up matrix are separate matrices."""
    stack = value if value.dim() == 3 else value.unsqueeze(0)
    change = update if update.dim() == 3 else update.unsqueeze(0)
    if name.endswith("gate_up"):
        half = stack.shape[1] // 2
        yield stack[:, :half], change[:, :half]
        yield stack[:, half:], change[:, half:]
    else:
        yield stack, change
