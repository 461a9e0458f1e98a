"""``python program.py FOLDER``: collect a run whose ``hotloop run`` is on another machine, or that nobody put hotloop
in front of. The first process of a node that needs it starts it; it goes when the last one has gone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[2]


def main() -> int:
    sys.path.insert(0, str(_SOURCE.parent))
    from hotloop.agent.replay.collector import Collector, read_name

    folder = Path(sys.argv[1])
    try:
        collector = Collector(folder / "processes", read_name(folder))
    except OSError:  # another process of this node was first
        return 0
    if os.fork():
        os._exit(0)
    os.setsid()
    empty = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(empty, stream)
    collector.run(until_idle=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
