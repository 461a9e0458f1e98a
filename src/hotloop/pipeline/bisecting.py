"""A fast and a slow run (two environments, or two revisions) -> a Bisection: which change makes it slow."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.change.tune.bisection import find_culprit
from hotloop.core.bisection import Bisection, BisectStep, UntriedChange
from hotloop.core.environment import ENVIRONMENT_FILE, EnvironmentChange, compare_environments
from hotloop.core.errors import UsageError
from hotloop.core.proof import Proof
from hotloop.core.redact import HIDDEN
from hotloop.evidence.telemetry.environment import read_packages
from hotloop.evidence.trace.recording import read_json

from .proving import Emit, ProofVariant, check_out, prove, run_git, run_tool
from .recordings import locate_run

INSTALL_TIMEOUT_S = 1800
OVER = "the budget ran out"
MOST_LEAST_RATIO = 0.5
"""The largest difference that a proof may call none."""
LIST_SITE_FOLDERS = """
import site, sys
user = [site.getusersitepackages()] if sys.prefix == sys.base_prefix else []
print("\\n".join([*user, *site.getsitepackages()]))
"""
Vary = Callable[[frozenset[int], Path], AbstractContextManager[tuple[ProofVariant, ProofVariant]]]
"""Positions of changes and a folder -> the run without these changes, and the run with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """The changes that hotloop can make, and how."""

    changes: tuple[EnvironmentChange, ...]
    vary: Vary
    untried: tuple[UntriedChange, ...] = ()

    @property
    def are_revisions(self) -> bool:
        """Whether each change builds on those before it, so that none can be left out."""
        return bool(self.changes) and self.changes[0].kind == "revision"


def bisect(
    suspects: Suspects,
    command: Sequence[str],
    folder: Path,
    emit: Emit,
    *,
    budget_s: float,
    least_ratio: float,
    referee: Callable[..., Proof] = prove,
) -> Bisection:
    """Prove that the run with all changes is slower, find the culprit, and prove the run with it alone and without it.

    ``folder`` takes what the steps need, and the logs of what failed. ``referee`` is called as ``prove``.
    """
    begun_s, changes = time.monotonic(), suspects.changes
    prove_step = partial(referee, emit=emit, numerics=None, words=())
    search = _Search(suspects, folder, emit, prove_step, until_s=begun_s + budget_s, slow_ratio=1 + least_ratio)
    result = Bisection(
        tool_version=__version__,
        verdict="cannot tell",
        reason="hotloop cannot make any of the changes",
        command=tuple(command),
        changes_count=len(changes),
        untried=suspects.untried,
    )
    if changes:
        is_slow, whole = search.look(frozenset(range(len(changes))))
        reason = "the run with all changes that hotloop can make is not slower: the cause is not among them"
        if is_slow is None:
            reason = f"the run with all changes cannot be compared: {whole.reason if whole else OVER}"
        result = replace(result, whole_ratio=whole.ratio if whole else None, reason=reason, suspects=changes)
        if is_slow and whole and whole.ratio:
            search.slow_ratio = math.sqrt(whole.ratio)
            result = _find(result, search, suspects)
    return replace(result, steps=tuple(search.steps), took_s=time.monotonic() - begun_s)


def _find(result: Bisection, search: _Search, suspects: Suspects) -> Bisection:
    """The culprit with its own ratio and, unless it is a revision, the ratio of the rest."""
    most = 1 if suspects.are_revisions else len(suspects.changes)
    found, is_culprit = find_culprit(len(suspects.changes), lambda chosen: search.look(chosen)[0], most)
    named = tuple(suspects.changes[at] for at in sorted(found))
    if not is_culprit:
        return replace(result, suspects=named, reason="the steps do not show which of the suspects makes the run slow")
    _, alone = search.look(found)
    assert alone is not None
    result = replace(result, verdict="found", culprit=named, suspects=(), reason="slow with this change alone")
    result = replace(result, ratio=alone.ratio, low=alone.low, high=alone.high)
    rest = frozenset(range(len(suspects.changes))) - found
    if suspects.are_revisions or not rest:
        return result
    is_slow, without = search.look(rest)
    said = {
        None: "; without it: cannot tell",
        True: ", but also without it: undo it, and bisect again",
        False: ", and not slow without it",
    }[is_slow]
    return replace(result, rest_ratio=without.ratio if without else None, reason=result.reason + said)


class _Search:
    """Looks at sets of changes, each once. ``slow_ratio`` divides fast from slow: the middle of the whole slowdown."""

    def __init__(
        self,
        suspects: Suspects,
        folder: Path,
        emit: Emit,
        prove_step: Callable[..., Proof],
        *,
        until_s: float,
        slow_ratio: float,
    ) -> None:
        self._suspects, self._folder, self._emit, self._prove_step = suspects, folder, emit, prove_step
        self._until_s, self.slow_ratio = until_s, slow_ratio
        self.steps: list[BisectStep] = []
        self.look = cache(self._look)

    def _look(self, chosen: frozenset[int]) -> tuple[bool | None, Proof | None]:
        """Whether the run with these changes is slow, and the proof, within its share of the time that is left."""
        changes, number = self._suspects.changes, len(self.steps) + 1
        planned = 3 + math.ceil(math.log2(len(changes)))  # all changes, the halves, the culprit alone, and the rest
        # Half of the time for the first proof, without which there is no search; then twice an even share, because most
        # proofs end before their time is up.
        parts_count = 2.0 if number == 1 else max(1.0, (planned + 1 - number) / 2)
        share_s = (self._until_s - time.monotonic()) / parts_count
        proof, place = None, self._folder / f"step-{number}"
        if share_s > 0:
            self._emit(f"step {number}: {len(chosen)} of {len(changes)} changes")
            with self._suspects.vary(chosen, place) as (a, b):
                least_ratio = min(self.slow_ratio - 1, MOST_LEAST_RATIO)
                proof = self._prove_step(a, b, place, budget_s=share_s, least_ratio=least_ratio)
        is_slow = None if proof is None else self._judge(proof)
        names = tuple(changes[at].name for at in sorted(chosen))
        self.steps.append(BisectStep(changes=names, is_slow=is_slow, proof=proof))
        return is_slow, proof

    def _judge(self, proof: Proof) -> bool | None:
        """Whether the ratio is on the slow side. An undecided proof says so only if its interval is on one side."""
        is_open = (proof.low or 0.0) <= self.slow_ratio <= (proof.high or math.inf)
        if proof.ratio is None or (proof.verdict == "cannot tell" and is_open):
            return None
        return proof.ratio >= self.slow_ratio


def suspect_environment(fast: str, slow: str, variant: ProofVariant, folder: Path, install: str | None) -> Suspects:
    """What differs between two recorded runs, made by variables, and by packages in environments of hotloop's own.

    ``install`` is a command with {python} and {requirements}. Raises UsageError, RecordingError.
    """
    python = str(Path(shutil.which(variant.command[0]) or variant.command[0]).absolute())
    installed = read_packages(python, variant.variables.get("PYTHONPATH", ""), INSTALL_TIMEOUT_S) if install else {}
    judged = [
        (change, _say_untried(change, install, installed, python))
        for change in compare_environments(_read_environment(fast), _read_environment(slow))
    ]
    changes = tuple(change for change, reason in judged if reason is None)
    make = partial(_make_side, variant, python, changes, install or "", installed or {})
    unchanged = make(frozenset(), folder / "environment")

    @contextmanager
    def vary(chosen: frozenset[int], place: Path) -> Iterator[tuple[ProofVariant, ProofVariant]]:
        try:
            yield unchanged, make(chosen, place / "environment")
        finally:
            shutil.rmtree(place / "environment", ignore_errors=True)

    untried = tuple(UntriedChange(change=change, reason=reason) for change, reason in judged if reason is not None)
    return Suspects(changes=changes, vary=vary, untried=untried)


def _read_environment(run: str) -> dict[str, Any]:
    content = read_json(locate_run(run) / ENVIRONMENT_FILE, [])
    if content is None:
        raise UsageError(f"{run} contains no readable {ENVIRONMENT_FILE}; record it again with: hotloop run -- COMMAND")
    return content


def _say_untried(
    change: EnvironmentChange, install: str | None, installed: Mapping[str, str] | None, python: str
) -> str | None:
    """Why a change cannot be made; None if it can."""
    values = [value for value in (change.before, change.after) if value is not None]
    is_package = change.kind == "package"
    reasons = (
        (change.kind == "machine", "hotloop can change neither the machine nor its Python"),
        (any(HIDDEN in value for value in values), "its value was hidden in the recording"),
        (is_package and install is None, "give --install, so that hotloop can install it in environments of its own"),
        (
            is_package and (installed is None or not os.path.basename(python).startswith("python")),
            f"{python} is not a Python; start the command with python, such as python -m torch.distributed.run",
        ),
        (is_package and " at " in "".join(values), "it was installed from a repository: bisect that with --git"),
        (
            is_package and len(values) < 2 and change.name in (installed or ()),
            "only one of the runs had it, and the command's Python has it; use a Python without it",
        ),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _make_side(
    variant: ProofVariant,
    base: str,
    changes: Sequence[EnvironmentChange],
    install: str,
    installed: Mapping[str, str],
    chosen: frozenset[int],
    folder: Path,
) -> ProofVariant:
    """The fast run with the ``chosen`` changes. ``folder`` takes its environment, if packages are among the changes."""
    values = [(change, change.after if at in chosen else change.before) for at, change in enumerate(changes)]
    packages = {change.name: value for change, value in values if change.kind == "package"}
    changed = {**variant.variables, **{change.name: value for change, value in values if change.kind == "variable"}}
    variables = {name: value for name, value in changed.items() if value is not None}
    if not packages:
        return replace(variant, variables=variables)
    python = _make_environment(base, folder, variables)
    variables |= {"PATH": f"{python.parent}{os.pathsep}{variables.get('PATH', '')}", "VIRTUAL_ENV": str(folder)}
    requirements = [
        f"{name}=={packages[name]}" for name in packages if packages[name] not in (None, installed.get(name))
    ]
    if requirements:
        filled = {"{python}": [str(python)], "{requirements}": requirements}
        words = [one for word in shlex.split(install) for one in filled.get(word, [word])]
        run_tool(words, variant.cwd, INSTALL_TIMEOUT_S, variables)
    have = read_packages(str(python), variables.get("PYTHONPATH", ""), INSTALL_TIMEOUT_S) or {}
    for name, version in packages.items():
        if have.get(name) != version:
            raise UsageError(f"--install: {name} is {have.get(name)} in the new environment, not {version}")
    return replace(variant, command=(str(python), *variant.command[1:]), variables=variables)


def _make_environment(base: str, folder: Path, variables: Mapping[str, str]) -> Path:
    """The Python of a new environment that also sees all packages of ``base``: what is installed later goes first.

    A venv that was made by a venv's Python would not see the packages of that venv.
    """
    run_tool(
        [base, "-I", "-m", "venv", "--without-pip", str(folder)], folder.parent.parent, INSTALL_TIMEOUT_S, variables
    )
    places = run_tool([base, "-I", "-c", LIST_SITE_FOLDERS], folder, INSTALL_TIMEOUT_S, variables).splitlines()
    own = next(folder.glob("lib/python3*/site-packages"))
    (own / "over_base.pth").write_text("".join(f"import site; site.addsitedir({place!r})\n" for place in places))
    return folder / "bin" / "python"


def suspect_revisions(good: str, bad: str, variant: ProofVariant) -> Suspects:
    """The first-parent commits after ``good`` up to ``bad``. Raises UsageError."""
    lines = run_git(variant.cwd, "log", "--first-parent", "--reverse", "--format=%H %s", f"{good}..{bad}", "--")
    commits = [line.partition(" ")[::2] for line in lines.splitlines()]
    if not commits:
        raise UsageError(f"--git {good}..{bad}: no commit is between them; give the fast revision first")
    ids = [good, *(commit for commit, _ in commits)]

    @contextmanager
    def vary(chosen: frozenset[int], place: Path) -> Iterator[tuple[ProofVariant, ProofVariant]]:
        """The revisions before and after a range of commits."""
        with check_out((ids[min(chosen)], ids[max(chosen) + 1]), variant.cwd, place) as ((a, _), (b, _)):
            yield replace(variant, cwd=a), replace(variant, cwd=b)

    changes = tuple(
        EnvironmentChange(kind="revision", name=f"{commit[:10]} {subject}", before=ids[at], after=commit)
        for at, (commit, subject) in enumerate(commits)
    )
    return Suspects(changes=changes, vary=vary)
