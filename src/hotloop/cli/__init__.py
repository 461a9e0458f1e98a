"""The command line: one file per subcommand, each with its options and ``execute``; heavy imports inside."""

from __future__ import annotations

import os
import sys

from hotloop.core.errors import CommandNotStarted, HotloopError

TYPE_CHECKING = False  # as in hotloop itself: `hotloop --help` starts without typing, pathlib or json
if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_SCREEN = """\
hotloop finds what slows down your PyTorch training. Start with one of these:

  hotloop run -- python train.py     run your training unchanged, and report what its steps wait for
  hotloop tune -- python train.py    try the fixes on it, and prove what they save
  hotloop lint .                     check scripts and job files without running them

All commands: hotloop --help"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; a HotloopError is one line on stderr and 2."""
    from hotloop.cli.parser import build_parser

    _show_every_sign()
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    parser = build_parser(arguments)
    parsed = parser.parse_args(arguments)
    if parsed.execute is None:
        print(FIRST_SCREEN)
        return 2
    try:
        os.getcwd()
    except FileNotFoundError:
        print("hotloop: the current folder no longer exists; cd to another one", file=sys.stderr)
        return 2
    try:
        code: int = parsed.execute(parsed)
        return code
    except CommandNotStarted as error:
        print(f"hotloop: {error}", file=sys.stderr)
        return error.exit_code
    except HotloopError as error:
        print(f"hotloop: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hotloop: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away: nothing more to say to it
        return 0


def _show_every_sign() -> None:
    """On a stream whose encoding lacks a sign such as µ, write its plain form in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or ""
        if not encoding.lower().startswith("utf") and hasattr(stream, "reconfigure"):
            import codecs

            from hotloop.core.plain import replace_unknown

            codecs.register_error("hotloop", replace_unknown)
            stream.reconfigure(errors="hotloop")
