"""--cache and --no-cache: where the decoded columns of traces are kept."""

from __future__ import annotations

import os
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", metavar="DIR", help="folder of the cache of decoded traces (default: the user's cache folder)"
    )
    parser.add_argument("--no-cache", action="store_true", help="do not read or write the cache of decoded traces")


def choose_cache_folder(arguments: argparse.Namespace) -> Path | None:
    """None where nothing is to be kept."""

    from hotloop.trace.cache import default_cache_folder

    if arguments.no_cache:
        return None
    return Path(arguments.cache) if arguments.cache else default_cache_folder(os.environ)
