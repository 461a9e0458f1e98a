"""Tensors whose elements lie in another order in memory: put there, and found where a script counts on the order.

``p.view(-1)``, ``torch.optim.LBFGS`` and safetensors want contiguous tensors and raise otherwise; fused kernels walk a
weight, its gradient and its state by position in memory, so all of them have to lie in the same order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import torch


def order_parameters(parameters: Iterable[Any], layout: torch.memory_format) -> None:
    """Lay parameters and their gradients out; the objects stay the same."""
    for p in parameters:
        p.data = p.data.contiguous(memory_format=layout)
        if p.grad is not None:
            p.grad.data = p.grad.data.contiguous(memory_format=layout)


def order_state(optimizer: Any, parameters: Iterable[Any]) -> None:
    """What the optimizer keeps for every element of a parameter gets that parameter's order in memory."""
    for p in parameters:
        state = optimizer.state.get(p) or {}
        for key, value in list(state.items()):
            if type(value) is torch.Tensor and value.shape == p.shape and value.stride() != p.stride():
                # A new tensor: the old one may still be part of the checkpoint that the script has loaded.
                state[key] = torch.empty_like(p, dtype=value.dtype, device=value.device).copy_(value)


class ToChannelsLast(torch.autograd.Function):
    """An image in channels_last whose gradient comes back contiguous, as the script gave it and expects it."""

    @staticmethod
    def forward(ctx: Any, image: torch.Tensor) -> torch.Tensor:
        return image.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


def flat_use_line(source: str | bytes) -> int | None:
    """The first line that takes a weight or a gradient for a row of numbers, which it is only where it is contiguous.

    >>> flat_use_line("flat = [p.grad.view(-1) for p in model.parameters()]")
    1
    >>> flat_use_line("for p in group['params']:\\n    p.data.view(-1).add_(1)")
    2
    >>> flat_use_line("x = x.view(len(x), -1)")
    """
    tree = ast.parse(source)
    names = _names_of_weights(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        if called == "parameters_to_vector":
            return node.lineno
        if called == "view" and isinstance(node.func, ast.Attribute) and _is_weight(node.func.value, names):
            return node.lineno
    return None


def _is_weight(value: ast.expr, names: set[str]) -> bool:
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "detach":
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        else:
            break
    if isinstance(value, ast.Attribute):
        return value.attr in ("grad", "weight")
    return isinstance(value, ast.Name) and value.id in names


def _names_of_weights(tree: ast.AST) -> set[str]:
    """Names that a loop gives to each of a model's parameters, or to each of the gradients of ``autograd.grad``."""
    lists = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "grad"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.comprehension)) and _lists_weights(node.iter, lists)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }


def _lists_weights(value: ast.expr, lists: set[str]) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"))
        or (isinstance(node, ast.Constant) and node.value == "params")
        or (isinstance(node, ast.Name) and node.id in lists)
        for node in ast.walk(value)
    )


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
