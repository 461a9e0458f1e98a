"""Count the rooms that a command walks through: python scripts/walk.py report RECORDING.

The walk is the modules of hotloop in the order in which a function of each is first called, imports left aside. A room
is a package of the layers in pyproject.toml; a turn back is a step into a room that the walk had already left.
"""

from __future__ import annotations

import sys
from itertools import groupby
from types import FrameType
from typing import Any

from hotloop.cli import main


def walk(arguments: list[str]) -> list[str]:
    """The packages of the modules entered, in order, neighbours of one package as one."""
    modules: dict[str, str] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        is_written = frame.f_code.co_filename.endswith(".py")  # and not made by dataclass
        if event != "call" or not is_written or not name.startswith("hotloop.") or name in modules:
            return
        outer: FrameType | None = frame
        while outer and outer.f_code.co_name != "<module>":
            outer = outer.f_back
        if outer and outer.f_globals["__name__"] == "__main__":
            modules[name] = name.split(".")[1]

    sys.setprofile(note)
    main(arguments)
    sys.setprofile(None)
    return [package for package, _ in groupby(modules.values())]


if __name__ == "__main__":
    rooms = walk(sys.argv[1:])
    print(f"{len(set(rooms))} rooms, {len(rooms) - len(set(rooms))} turns back: {' > '.join(rooms)}", file=sys.stderr)
