"""Subcommands -> one argparse parser. Importing this loads no subcommand's work."""

from __future__ import annotations

import argparse
import os
from importlib import import_module

from hotloop import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

COMMANDS = {
    "run": "run a training command and say what its steps wait for",
    "tune": "try the fixes on the unmodified command, and prove them",
    "report": "show the report of a recorded run again",
    "trace": "diagnose a training from the files of a profiler",
    "diff": "say why a step takes longer or shorter than it did",
    "check": "say whether a run became slower or larger than its baseline or limits allow",
    "bench": "measure parts of a training alone, its loader, its scaling, its matrix products",
    "rule": "explain a rule, or list all rules",
    "doctor": "check whether this machine is set up well for training",
}
"""Subcommands in the order of the help, and what it says of them; each is a module with a name ending in _command."""


class HelpFormatter(argparse.HelpFormatter):
    """argparse's own, which would import shutil and three compressors to learn how wide the terminal is."""

    columns: int | None = None

    def __init__(self, prog: str) -> None:
        if HelpFormatter.columns is None:
            HelpFormatter.columns = _terminal_columns()
        super().__init__(prog, width=HelpFormatter.columns - 2)


class Parser(argparse.ArgumentParser):
    """A parser whose subcommands' help is formatted as its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **settings)


def _terminal_columns() -> int:
    """As shutil.get_terminal_size: what COLUMNS says, else the terminal, else 80."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size().columns
    except (OSError, ValueError):
        columns = 0
    return columns if columns > 0 else 80


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the command line ``words``: only a subcommand that occurs there knows its options. None: all do."""
    parser = Parser(
        prog="hotloop",
        description="Find what your training loop waits for, fix it, and prove it.",
        epilog="Start with: hotloop run -- python train.py",
    )
    parser.add_argument("--version", action="version", version=f"hotloop {__version__}")
    parser.set_defaults(execute=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, text in COMMANDS.items():
        if words is None or name in words:
            import_module(f"hotloop.cli.{name}_command").add_parser(subparsers, text)
        else:
            subparsers.add_parser(name, help=text)
    return parser
