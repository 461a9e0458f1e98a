"""Subcommands -> one argparse parser. Importing this loads no subcommand's work."""

from __future__ import annotations

import argparse
from importlib import import_module

from hotloop import __version__

COMMANDS = ("run", "report", "rule", "doctor")
"""Subcommands in the order of the help; each is a module of this package with a name ending in _command."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotloop",
        description="Find what your training loop waits for, fix it, and prove it.",
        epilog="Start with: hotloop run -- python train.py",
    )
    parser.add_argument("--version", action="version", version=f"hotloop {__version__}")
    parser.set_defaults(execute=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        import_module(f"hotloop.cli.{name}_command").add_parser(subparsers)
    return parser
