"""hotloop upload: send a run that was recorded here to a URL, or what `hotloop run --record` could not send."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from hotloop.cli.options import option
from hotloop.cli.show import emit
from hotloop.core.errors import UsageError

ORDER, SUMMARY = 3, "send a recorded run to a URL, from which a report can read all nodes"


ABOUT = {
    "description": (
        "Send a run that was recorded here to a URL, or the rest of a run that `hotloop run --record` could not send "
        "in time. Sends only data that has not arrived yet; after an interruption, the same command continues. Exits "
        "with 1 if some data did not arrive."
    )
}
OPTIONS = (
    option("run", metavar="RUN", help="a run folder, its name under .hotloop/, or 'last' (the last training run)"),
    option("url", metavar="URL", help="s3://bucket/run, any other URL of fsspec, or a folder"),
    option("--record-id", metavar="ID", help="id of the run, the same on all its nodes"),
    option(
        "--wait",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to retry after failures (default: 300)",
    ),
    option("--follow", action="store_true", help=argparse.SUPPRESS),
)


def execute(arguments: argparse.Namespace) -> int:
    import shlex

    from hotloop.pipeline.recordings import choose_run_id, count_rows, upload_run
    from hotloop.remote.follow import follow

    if arguments.follow:
        return follow(Path(arguments.run), arguments.url, arguments.record_id, count_rows)
    if not 0 <= arguments.wait < 1e6:
        raise UsageError(f"--wait {arguments.wait}: give a number of seconds, 0 or more")
    folder, uploaded = upload_run(
        arguments.run,
        arguments.url,
        run_id=choose_run_id(arguments.record_id, os.environ),
        within_s=arguments.wait,
        emit=emit,
    )
    if uploaded.reason is not None:
        emit(f"{uploaded.describe()}; it is kept in {folder}")
        return 1
    emit(f"{uploaded.rows_count:,} rows of {folder.name} arrived: hotloop report {shlex.quote(uploaded.url)}")
    return 0
