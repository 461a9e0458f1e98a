"""hotloop prove: is one variant of a training faster than another, and does it train the same model?"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_outputs, show_report
from hotloop.core.errors import UsageError
from hotloop.core.findings import Numerics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotloop.pipeline.proving import ProofVariant

ORDER, SUMMARY = 3, "determine which of two variants of a run is faster, with statistics and a check of the loss"
EXIT_CODES = {"faster": 0, "same": 0, "slower": 1, "refused": 1, "cannot tell": 3}
SIDES = (("git", "A..B"), ("strategies", "A,B"), ("pythons", "A,B"))


ABOUT = {
    "description": (
        "Run two variants of a training command in turn, in fresh processes on copies of the working folder, and "
        "report whether B is faster than A, slower or the same, or that the runs do not show it. B is refused if it "
        "fails or if its loss differs. Exits with 0 for faster and same, 1 for slower and refused, 3 for cannot tell, "
        "and 2 after a usage error."
    ),
    "usage": (
        "hotloop prove [options] COMMAND_A... -- COMMAND_B...\n"
        "       hotloop prove [options] --git A..B -- COMMAND...\n"
        "       hotloop prove [options] --strategies A.toml,B.toml -- COMMAND...\n"
        "       hotloop prove [options] --pythons A/bin/python,B/bin/python -- COMMAND...\n"
        "       hotloop prove --replay FILE.json"
    ),
}
OPTIONS = (
    option("--git", metavar="A..B", help="run one command in two revisions of its repository"),
    option(
        "--strategies", metavar="A,B", help="run one command under two strategy files; 'none' is the unchanged command"
    ),
    option("--pythons", metavar="A,B", help="run one command in the environments of two Pythons"),
    option("--replay", metavar="FILE", help="repeat the proof that --json wrote, on this machine"),
    option("--budget", metavar="TIME", default="10m", help="total time, such as 90s, 15m or 2h (default: 10m)"),
    option(
        "--at-least",
        metavar="PERCENT",
        default="3%",
        help="the smallest difference that matters: if the difference is certainly smaller, the verdict is 'same' "
        "(default: 3%%)",
    ),
    option(
        "--numerics",
        choices=[numerics.value for numerics in Numerics],
        default=Numerics.REORDERED.value,
        help="how B may change the computed numbers: exact (equal bit for bit), reordered (sums in another order), "
        "resampled (other random data), or lossy (lower precision) (default: reordered)",
    ),
    *output_options("proof", kind="prove", html=None),
    option("command", nargs="...", metavar="COMMAND", help="the two commands, with -- between them"),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.cli.show import emit
    from hotloop.cli.tune_command import make_folder, parse_time_s
    from hotloop.pipeline.proving import prove

    check_outputs(arguments.json)
    words = _list_words(arguments)
    if arguments.replay is not None:
        words = read_words(arguments.replay)
        again = arguments.parser.parse_args(words)
        again.json, again.format, again.quiet = arguments.json, arguments.format, arguments.quiet
        arguments = again
    budget_s, least_ratio = parse_time_s(arguments.budget), parse_percent(arguments.at_least)
    folder = make_folder(None, "prove")
    try:
        with ExitStack() as stack:
            a, b = make_variants(arguments, folder, stack)
            proof = prove(
                a,
                b,
                folder,
                (lambda text: None) if arguments.quiet else emit,
                budget_s=budget_s,
                least_ratio=least_ratio,
                numerics=Numerics(arguments.numerics),
                words=words,
            )
    finally:
        if not list(folder.glob("*/trials/*")):  # no log of a failure is left
            shutil.rmtree(folder, ignore_errors=True)
    show_report(proof, arguments, sys.stdout)
    return EXIT_CODES[proof.verdict]


def make_variants(arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[ProofVariant, ProofVariant]:
    """The two sides of the command line. Raises UsageError."""
    from dataclasses import replace

    from hotloop.core.strategy import load_strategy
    from hotloop.pipeline.proving import check_out
    from hotloop.pipeline.tuning import check

    given = [name for name, _ in SIDES if getattr(arguments, name) is not None]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]}: give only one of them, so that only one thing differs")
    commands = split_commands(arguments.command)
    if len(commands) != (1 if given else 2):
        wanted = f"--{given[0]} takes one command" if given else "give two commands with -- between them"
        raise UsageError(f"{wanted}, not {len(commands)}; run: hotloop prove python a.py -- python b.py")
    sides = [make_variant(command, dict(os.environ)) for command in (commands * 2)[:2]]
    if arguments.git is not None:
        revisions = take_pair(arguments.git, "..", "git")
        places = stack.enter_context(check_out(revisions, Path.cwd(), folder))
        sides = [replace(side, cwd=place, change=change) for side, (place, change) in zip(sides, places, strict=True)]
    if arguments.strategies is not None:
        for at, name in enumerate(take_pair(arguments.strategies, ",", "strategies")):
            if name != "none":
                strategy = load_strategy(name)
                check(strategy, source=name)
                sides[at] = replace(sides[at], strategy=strategy, change=f"strategy {name}")
    if arguments.pythons is not None:
        sides = [
            make_variant(commands[0], _use_python(python), change=f"Python {python}")
            for python in take_pair(arguments.pythons, ",", "pythons")
        ]
    return sides[0], sides[1]


def make_variant(command: list[str], variables: dict[str, str], change: str = "") -> ProofVariant:
    from hotloop.agent.attach import child
    from hotloop.pipeline.proving import ProofVariant

    resolved = child.resolve_attachable(command, variables.get("PATH"))
    return ProofVariant(command=tuple(resolved), cwd=Path.cwd(), variables=variables, change=change)


def split_commands(words: list[str]) -> list[list[str]]:
    """The commands between ``--``; one word with spaces is a command line of its own.

    >>> split_commands(["--", "python a.py", "--", "python", "b.py"])
    [['python', 'a.py'], ['python', 'b.py']]
    """
    commands: list[list[str]] = [[]]
    for word in words[1:] if words[:1] == ["--"] else words:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    return [shlex.split(command[0]) if len(command) == 1 else command for command in commands if command]


def parse_percent(text: str) -> float:
    """A share of ``3%``, ``3`` (percent) or ``0.5%``. Raises UsageError.

    >>> parse_percent("3%"), parse_percent("5")
    (0.03, 0.05)
    """
    try:
        percent = float(text.rstrip("% "))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 50:
        raise UsageError(f"--at-least is {text!r}; give a percentage above 0 and at most 50, such as 3%")
    return percent / 100


def read_words(path: str) -> list[str]:
    """The command line of a proof's JSON. Raises UsageError, RecordingError."""
    from hotloop.cli.report_command import read_report_file
    from hotloop.core.proof import Proof

    proof = read_report_file(Path(path))
    if not isinstance(proof, Proof):
        raise UsageError(f"--replay {path}: not a proof that hotloop prove --json wrote")
    words = list(proof.words)
    if not words:
        raise UsageError(f"--replay {path}: the proof does not contain its command line")
    return words


def _list_words(arguments: argparse.Namespace) -> list[str]:
    words = ["--budget", arguments.budget, "--at-least", arguments.at_least, "--numerics", arguments.numerics]
    for name, _ in SIDES:
        if getattr(arguments, name) is not None:
            words += [f"--{name}", getattr(arguments, name)]
    return [*words, "--", *(arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command)]


def take_pair(text: str, separator: str, name: str) -> tuple[str, str]:
    first, found, second = text.partition(separator)
    if not found or not first or not second:
        raise UsageError(f"--{name} is {text!r}; give two, such as {dict(SIDES)[name]}")
    return first, second


def _use_python(python: str) -> dict[str, str]:
    """The variables of an environment that this Python belongs to. Raises UsageError."""
    path = Path(shutil.which(python) or python)
    if not os.access(path, os.X_OK) or path.is_dir():
        raise UsageError(f"--pythons: {python} is not a program; give the path of a Python, such as .venv/bin/python")
    variables = {**os.environ, "PATH": f"{path.absolute().parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    if (path.absolute().parent.parent / "pyvenv.cfg").exists():
        variables["VIRTUAL_ENV"] = str(path.absolute().parent.parent)
    return variables
