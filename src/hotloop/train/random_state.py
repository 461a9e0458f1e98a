"""The random number generators of this process -> a JSON value, and back: torch (CPU, CUDA), random, numpy."""

from __future__ import annotations

import base64
import importlib
import random
import sys
from typing import Any

import torch


def seed_generators(seed: int) -> None:
    """Seed every kind of generator that this process has; numpy's only where it is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def read_generators() -> dict[str, Any]:
    """Where every generator stands. numpy is absent when nothing imported it."""
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {
        "torch": encode_state(torch.get_rng_state()),
        "python": [version, list(words), gauss],
    }
    if torch.accelerator.is_available():
        kind = str(torch.accelerator.current_accelerator())
        found[kind] = encode_state(torch.get_device_module(kind).get_rng_state())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return found


def restore_generators(found: dict[str, Any]) -> None:
    """Put every generator back to where ``read_generators`` found it."""
    torch.set_rng_state(decode_state(found["torch"]))
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words), gauss))
    kind = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else ""
    if kind in found:
        torch.get_device_module(kind).set_rng_state(decode_state(found[kind]))
    if "numpy" in found:
        try:
            numpy: Any = importlib.import_module("numpy")
        except ImportError:  # nothing here can draw from it
            return
        kind, keys, position, has_gauss, cached = found["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


def encode_state(state: torch.Tensor) -> str:
    """A generator's state as text."""
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def decode_state(text: str) -> torch.Tensor:
    """The state that ``encode_state`` wrote."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
