"""A step of a training -> the most bytes that its forward operators' results held at one time."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class ForwardBytes(TorchDispatchMode):
    """Bytes of the storages that forward operators made, recomputing ones too, and that live: the most in backward.

    Operators of backward itself run without gradients, those that are computed again in it with them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.untyped_storage()._cdata for one in args if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            for one in result if isinstance(result, tuple) else (result,):
                storage = one.untyped_storage() if isinstance(one, torch.Tensor) else None
                if storage is not None and storage._cdata not in given:
                    self.made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        elif func is not torch.ops.aten.detach.default:  # so does checkpoint, in the middle of computing again
            self.note()
        return result

    def note(self) -> None:
        """What lives now counts for the most."""
        self.made = {key: entry for key, entry in self.made.items() if not entry[0].expired()}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self.made.values()))
