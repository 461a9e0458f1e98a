"""The options of a command as data: each command lists what it takes, and argparse gets it in one place."""

from __future__ import annotations

from argparse import ArgumentTypeError

from hotloop.core.errors import suggest_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import _ActionsContainer
    from collections.abc import Sequence
    from typing import Any

    Option = tuple[tuple[str, ...], dict[str, Any]]
    Options = tuple[Option | list[Option], ...]
    """A list is a group of options that exclude each other."""

TERMINAL = "terminal"
"""The renderer that needs no --format."""


def option(*names: str, **settings: Any) -> Option:
    """Arguments for argparse's add_argument."""
    return names, settings


def add_options(parser: _ActionsContainer, options: Sequence[Option | list[Option]]) -> None:
    for one in options:
        if isinstance(one, list):
            add_options(parser.add_mutually_exclusive_group(), one)
        else:
            parser.add_argument(*one[0], **one[1])


class _Formats:
    """The renderers for one kind of report (None: for all). They load when they are asked for, not with the parser:
    that takes a tenth of a second, which a training would start later."""

    def __init__(self, kind: str | None) -> None:
        self._kind = kind

    @property
    def names(self) -> dict[str, str]:
        """Their ids, with summaries."""
        from hotloop.show.report import RENDERERS

        fitting = (one for one in RENDERERS.values() if self._kind is None or not one.kinds or self._kind in one.kinds)
        return {
            one.id: f"{one.summary} (of {' and '.join(one.kinds)} only)"
            if one.kinds and not self._kind
            else one.summary
            for one in fitting
        }

    def __call__(self, name: str) -> str:
        if name != TERMINAL and name not in self.names:
            raise ArgumentTypeError(f"unknown {name!r}{suggest_known(name, self.names)}")
        return name

    def __str__(self) -> str:
        return "; ".join(f"{name}: {summary}" for name, summary in self.names.items())


def format_option(what: str = "report", *, kind: str | None = "run") -> Option:
    """``--format``: every renderer of the catalogue that draws this kind of report."""
    text = f"format of the printed {what} (default: {TERMINAL}). %(type)s"
    return option("--format", metavar="NAME", type=_Formats(kind), default=TERMINAL, help=text)


def output_options(
    what: str = "report",
    *,
    kind: str | None = "run",
    to_stdout: bool = True,
    html: str | None = "as one HTML file",
    quiet: str | None = None,
) -> tuple[Option, ...]:
    """--format, --json, --html (unless ``html`` is None) and -q for what a command shows.

    ``kind`` is the id of its view; None where a file decides.
    """
    stdout = ", or - for standard output" if to_stdout else ""
    return (
        format_option(what, kind=kind),
        option("--json", metavar="FILE", help=f"write the {what} as JSON to FILE{stdout}"),
        *([] if html is None else [option("--html", metavar="FILE", help=f"write the {what} {html}")]),
        option("-q", "--quiet", action="store_true", help=f"print {quiet or f'no {what}'}"),
    )


WORKERS = option("--workers", type=int, metavar="N", help="number of reading processes (default: one per core)")
