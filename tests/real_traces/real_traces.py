"""The real traces beside the repository, as a folder of links to the files that the tests were written for.

What else lies in ../shared/traces is not in that folder, and what a test leaves there does not lie beside the traces.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[2] / "shared" / "traces"
FILES = tuple((HERE / "files.txt").read_text(encoding="utf-8").split())
"""Relative to the folder: traces, and their expected figures."""


def link_traces() -> Path:
    """A folder of links for this process, removed at its end; the absent folder itself where there are no traces."""
    if not SHARED.is_dir():
        return SHARED
    view = Path(tempfile.mkdtemp(prefix="hotloop-real-traces-"))
    atexit.register(shutil.rmtree, view)
    for name in FILES:
        link = view / name
        link.parent.mkdir(exist_ok=True)
        os.symlink(SHARED / name, link)
    return view


TRACES = link_traces()
