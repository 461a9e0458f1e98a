"""A file's name -> whether trainings usually give such a name to a checkpoint."""

from __future__ import annotations

import re
from pathlib import PurePath

CHECKPOINT_SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp")
CHECKPOINT_NAME = re.compile(
    r"(pytorch_model|diffusion_pytorch_model|adapter_model|model|optimizer|checkpoint|ckpt).*\.(bin|pkl)", re.I
)


def is_checkpoint_name(name: str) -> bool:
    """``last.pth.tar`` and ``model.bin`` are checkpoints, ``train.bin`` is data.

    >>> is_checkpoint_name("last.pt.tmp"), is_checkpoint_name("model.bin"), is_checkpoint_name("train.bin")
    (True, True, False)
    """
    suffixes = {suffix.lower() for suffix in PurePath(name).suffixes}
    return not suffixes.isdisjoint(CHECKPOINT_SUFFIXES) or CHECKPOINT_NAME.fullmatch(name) is not None
