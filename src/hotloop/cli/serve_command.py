"""hotloop serve: a page on this machine that shows all runs, one while it trains, and two compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotloop.cli.options import option
from hotloop.cli.show import emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


ORDER, SUMMARY = 3, "show all runs, including a live one, on a page on this machine"


ABOUT = {
    "description": (
        "Show the runs under .hotloop/ in a browser: the list, a live run, its report, and a comparison of "
        "two runs. The page is served only on this machine, to anyone who has the printed address, until you press "
        "Ctrl-C."
    )
}
OPTIONS = (
    option("folder", nargs="?", default=".", help="folder that contains .hotloop/ (default: here)"),
    option("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)"),
)


def execute(arguments: argparse.Namespace) -> int:
    import signal

    from hotloop.show.serve.listing import find_runs_folder
    from hotloop.show.serve.server import PageServer

    server = PageServer(find_runs_folder(Path(arguments.folder)), arguments.port, _make_reader)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(server.address, flush=True)
        emit("press Ctrl-C to stop")
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.close()
    return 0


def _make_reader(folder: Path) -> Any:
    """Loaded when the first run is opened: the list needs nothing of it."""
    from hotloop.pipeline.live import LiveReader

    return LiveReader(folder)
