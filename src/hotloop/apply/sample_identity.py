"""A data set -> the name of the folder in which its samples may be kept from one run to the next."""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

import torch

FORMAT = 1
DEEPEST = 6


def identify(dataset: Any) -> str:
    """A digest of all that is known to decide what a sample is: code, length, and the values of attributes.

    Two data sets of one digest may still differ in the files that they read. What has no plain value (an open file, an
    object of a library) counts by its class and by its own attributes.
    """
    digest = hashlib.sha256(f"{FORMAT} {torch.__version__}".encode())
    _add(digest, dataset, set(), DEEPEST)
    _add(digest, len(dataset), set(), 1)
    return digest.hexdigest()[:24]


def _add(digest: Any, value: Any, seen: set[int], depth: int) -> None:
    kind = type(value)
    digest.update(f"|{kind.__module__}.{kind.__qualname__}:".encode())
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        digest.update(repr(value).encode(errors="replace"))
        return
    if isinstance(value, bytes):
        digest.update(value)
        return
    if depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.device.type == "cpu" and value.layout is torch.strided:
            digest.update(str(hash_tensor(value)).encode())
    elif isinstance(value, (list, tuple)):
        for one in value:
            _add(digest, one, seen, depth - 1)
    elif isinstance(value, (set, frozenset)):
        digest.update(repr(sorted(map(repr, value))).encode(errors="replace"))
    elif isinstance(value, Mapping):
        for key in value:
            _add(digest, key, seen, depth - 1)
            _add(digest, value[key], seen, depth - 1)
    elif isinstance(value, (types.FunctionType, types.MethodType)):
        _add_function(digest, getattr(value, "__func__", value), seen, depth)
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(hashlib.sha256(value.tobytes()).digest())
    elif isinstance(value, type):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
    else:
        _add_object(digest, value, seen, depth)


def hash_tensor(tensor: torch.Tensor) -> str:
    """A digest of a CPU tensor's bytes."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    content = bytearray(flat.numel())
    if flat.numel():
        torch.frombuffer(content, dtype=torch.uint8).copy_(flat)
    return hashlib.sha256(content).hexdigest()


def _add_function(digest: Any, function: Any, seen: set[int], depth: int) -> None:
    code = function.__code__
    digest.update(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    for one in code.co_consts:
        if not isinstance(one, types.CodeType):
            _add(digest, one, seen, depth - 1)
        else:
            digest.update(one.co_code)
    for cell in function.__closure__ or ():
        try:
            _add(digest, cell.cell_contents, seen, depth - 1)
        except ValueError:  # an empty cell
            continue


def _add_object(digest: Any, value: Any, seen: set[int], depth: int) -> None:
    for owner in type(value).__mro__:
        if owner.__module__ not in ("builtins", "typing"):
            try:
                digest.update(inspect.getsource(owner).encode(errors="replace"))
            except (OSError, TypeError):  # typed at a prompt, or written in C
                digest.update(owner.__qualname__.encode())
    for name, one in sorted(getattr(value, "__dict__", {}).items()):
        digest.update(name.encode(errors="replace"))
        _add(digest, one, seen, depth - 1)
