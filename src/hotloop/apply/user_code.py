"""Loaded modules -> the first line of the user's own code in which something is found; None when there is none."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

MOST_BYTES = 4 << 20


def find_in_user_code(words: Sequence[bytes], find_line: Callable[[bytes], int | None]) -> str | None:
    """'file:line' of what ``find_line(source)`` finds in loaded code that belongs to no installed package.

    Only files that hold one of ``words`` are read further. What cannot be read counts as found.
    """
    installed = tuple(
        os.path.realpath(path) + os.sep for path in {*sysconfig.get_paths().values(), os.path.dirname(__file__)}
    )
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = os.path.realpath(file)
        is_known = name.partition(".")[0] in ("hotloop", "torch")
        if is_known or path.startswith(installed) or f"{os.sep}site-packages{os.sep}" in path:
            continue
        if not os.path.exists(path):  # a name that only stands for a file, as that of torch.ops
            continue
        try:
            data = Path(path).read_bytes()
            if not any(word in data for word in words):
                continue
            line = find_line(data) if len(data) <= MOST_BYTES else 1
        except (OSError, SyntaxError, ValueError):
            return f"{path}:1"
        if line is not None:
            return f"{path}:{line}"
    return None
