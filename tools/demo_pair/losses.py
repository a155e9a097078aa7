"""Compute losses on the output matrix in slices, so that no full score matrix is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
