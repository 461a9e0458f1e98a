"""torchrun's variables -> this process's rank, device and process groups; and its random number generators as JSON."""

from __future__ import annotations

import atexit
import base64
import importlib
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hotloop.core.errors import UsageError


def seed_generators(seed: int) -> None:
    """Seed every kind of generator that this process has; numpy's only if it is imported."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def read_generators() -> dict[str, Any]:
    """The state of every generator. numpy is absent when nothing imported it."""
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


SINGLE_DEVICES = ("cpu", "mps")
"""Kinds that a host has only one of, whatever the local rank."""
_LET_GO_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The position of this process among its peers. The groups are None on one rank.

    ``control`` carries the question whether to stop, ``saving`` the messages of the thread that writes checkpoints:
    each is used by one thread only, on the CPU, so neither waits for the gradients.
    """

    rank: int
    world_size: int
    device: torch.device
    control: Any = None
    saving: Any = None


def join_ranks(*, backend: str | None, device: str | torch.device | None) -> Ranks:
    """Join the process group that torchrun's variables describe, unless the script has created it."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    chosen = torch.device(device or "cpu")
    if chosen.type not in SINGLE_DEVICES:
        chosen = torch.device(chosen.type, local_rank) if chosen.index is None else chosen
        torch.accelerator.set_device_index(chosen)
    if world_size > 1:
        atexit.register(_let_go)
    if world_size > 1 and not dist.is_initialized():
        own = dist.get_default_backend_for_device(chosen)
        backend = backend or ("gloo" if chosen.type == "cpu" else f"cpu:gloo,{chosen.type}:{own}")
        try:
            dist.init_process_group(backend)
        except (ValueError, RuntimeError) as error:
            raise UsageError(f"backend={backend!r} did not start on {world_size} ranks: {error}") from error
        atexit.register(_leave)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks(rank=0, world_size=1, device=chosen)
    return Ranks(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=chosen,
        control=dist.new_group(backend="gloo"),
        saving=dist.new_group(backend="gloo"),
    )


def first_error(error: BaseException | None, group: Any) -> str | None:
    """The first rank's error in words, the same on every rank; None when no rank has one. All ranks must call it."""
    text = (
        None if error is None else (str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}")
    )
    if group is None:
        return text
    texts: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(texts, text, group=group)
    return next((f"rank {rank}: {one}" for rank, one in enumerate(texts) if one is not None), None)


def _let_go() -> None:
    """The last thing before the interpreter ends.

    A thread of gloo drops its last message a moment after that was delivered. If this needs the interpreter while it
    ends, C++ ends the process with SIGABRT, after everything was trained and saved (6 of 65 runs of two ranks with
    FSDP2 on busy cores).
    """
    time.sleep(_LET_GO_S)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
