"""Subcommands -> one argparse parser. Each is a module here whose name ends in _command; none loads its work yet."""

from __future__ import annotations

import argparse
import os
import re
from importlib import import_module

from hotloop import __version__
from hotloop.cli.options import add_options
from hotloop.core.errors import suggest_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

FOLDER = os.path.dirname(__file__)


class HelpFormatter(argparse.HelpFormatter):
    """argparse's own, which would import shutil and three compressors to learn how wide the terminal is."""

    columns: int | None = None

    def __init__(self, prog: str) -> None:
        if HelpFormatter.columns is None:
            HelpFormatter.columns = _terminal_columns()
        super().__init__(prog, width=HelpFormatter.columns - 2)


class Parser(argparse.ArgumentParser):
    """A parser whose subcommands' help is formatted as its own; an error is one line, with what was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **settings)
        self.options: list[str] = []
        """The long options of the subcommands that occur in the command line, and of this parser."""

    def list_options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings if option.startswith("--")]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            unknown = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "--"]
            if not unknown:
                self.error(f"unexpected: {' '.join(rest)}")
            self.error(f"unknown option {unknown[0]!r}", meant=_suggest_option(unknown[0], self.options))
        return parsed

    def error(self, message: str, meant: str = "") -> NoReturn:
        wrong = re.search(r"argument (.*?): invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if wrong is not None:
            argument, word, known = wrong.groups()
            message = f"{'unknown command' if argument == 'COMMAND' else f'{argument}: unknown'} {word!r}"
            meant = suggest_known(word, re.findall(r"[\w.-]+", known))
            if argument == "COMMAND" and word.endswith(".py"):
                meant = f"; to watch a training script: hotloop run {word}"
        if (bare := re.fullmatch(r"argument (\S+): expected one argument", message)) is not None:
            choices = next((a.choices for a in self._actions if bare[1] in a.option_strings), None)
            if choices:
                message = f"{bare[1]}: expected one of {', '.join(map(str, choices))}"
        self.exit(2, f"hotloop: {message}{meant or f'; see {self.prog} --help'}\n")


def _suggest_option(option: str, known: Sequence[str]) -> str:
    """Like suggest_known, by the words alone and without the list: a subcommand has many options, and a help."""
    meant = suggest_known(option.lstrip("-"), [one.lstrip("-") for one in known])
    return meant.replace("did you mean '", "did you mean '--") if "did you mean" in meant else ""


def _terminal_columns() -> int:
    """Like shutil.get_terminal_size: what COLUMNS says, else the terminal, else 80."""
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
    parser.options = parser.list_options()
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    found = list_commands()
    first = words[0] if words and words[0] in found else None
    commands = {name: import_module(f"hotloop.cli.{name}_command") for name in found if first in (None, name)}
    for name in sorted(found, key=lambda one: commands[one].ORDER if one in commands else 0):
        if name in commands and (words is None or name in words):
            command = _add_command(subparsers, name, commands[name])
            parser.options += command.list_options()
        else:
            subparsers.add_parser(name, help=commands[name].SUMMARY if name in commands else None)
    return parser


def _add_command(subparsers: Any, name: str, module: Any) -> Any:
    command = subparsers.add_parser(name, help=module.SUMMARY, **module.ABOUT)
    command.set_defaults(execute=module.execute, parser=command)
    add_options(command, module.OPTIONS)
    if hasattr(module, "KINDS"):
        kinds = command.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
        for kind, (about, options) in module.KINDS.items():
            one = kinds.add_parser(kind, **about)
            one.set_defaults(kind=kind)
            add_options(one, options)
    return command


def list_commands() -> list[str]:
    """The subcommands: each is a module with ORDER, SUMMARY and ABOUT for the help, OPTIONS (or KINDS of it, with
    options of their own) and execute."""
    return sorted(file.removesuffix("_command.py") for file in os.listdir(FOLDER) if file.endswith("_command.py"))
