"""pytest over the whole suite, with one rule more: a test may skip only where tests/expected_skips.toml says so.

Every argument goes to pytest. A skip that no entry lists fails the run, and so does a listed one whose condition does
not hold on this machine: a browser that is installed but not found must not silence the tests that need it. An entry
whose test file is gone fails before any test runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXPECTED_SKIPS = ROOT / "tests" / "expected_skips.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSkip:
    """An entry of the list. ``test`` is a pattern of test ids (* fits anything), ``when`` the name of a condition."""

    test: str
    when: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A test, or a whole file, that skipped; ``reason`` as pytest has it."""

    test: str
    reason: str


# Conditions: what this machine lacks.


def lacks_chromium() -> bool:
    return not Path("/usr/bin/chromium").exists()


def lacks_site() -> bool:
    return not (ROOT / "site" / "index.html").exists()


def lacks_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def lacks_shared_folder() -> bool:
    return not (ROOT.parent / "shared").is_dir()


def lacks_second_environment() -> bool:
    return not (ROOT / ".venv-bare" / "bin" / "python").exists()


def lacks_frameworks() -> bool:
    return not (ROOT / ".venv-frameworks" / "bin" / "python").exists()


def lacks_mount_permission() -> bool:
    """Tried, not guessed: root in a container often may not mount."""
    if shutil.which("mount") is None:
        return True
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "probe", folder], capture_output=True, check=False).returncode:
            return True
        subprocess.run(["umount", "-l", folder], check=True)
    return False


def lacks_network_namespaces() -> bool:
    """Tried, not guessed, as mounting is."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return True
    name = f"hotloop-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return True
    subprocess.run(["ip", "netns", "del", name], check=True)
    return False


def lacks_slurm() -> bool:
    names = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
    return os.geteuid() != 0 or any(shutil.which(name) is None for name in names)


def lacks_shared_memory() -> bool:
    return not os.access("/dev/shm", os.W_OK)


def lacks_buildah() -> bool:
    return os.geteuid() != 0 or shutil.which("buildah") is None or shutil.which("busybox") is None


def is_root() -> bool:
    return os.geteuid() == 0


def is_not_root() -> bool:
    return os.geteuid() != 0


def lacks_compiler() -> bool:
    """torch.compile needs a C++ compiler."""
    return shutil.which("g++") is None and shutil.which("clang++") is None


def lacks_two_cores() -> bool:
    return len(os.sched_getaffinity(0)) < 2


CONDITIONS: Mapping[str, Callable[[], bool]] = {
    "no-chromium": lacks_chromium,
    "no-site": lacks_site,
    "no-gpu": lacks_gpu,
    "no-shared-folder": lacks_shared_folder,
    "no-second-environment": lacks_second_environment,
    "no-frameworks": lacks_frameworks,
    "no-mount-permission": lacks_mount_permission,
    "no-network-namespaces": lacks_network_namespaces,
    "no-slurm": lacks_slurm,
    "no-shared-memory": lacks_shared_memory,
    "no-buildah": lacks_buildah,
    "root": is_root,
    "not-root": is_not_root,
    "no-compiler": lacks_compiler,
    "no-promtool": lambda: shutil.which("promtool") is None,
    "no-zsh": lambda: shutil.which("zsh") is None,
    "no-fish": lambda: shutil.which("fish") is None,
    "one-core": lacks_two_cores,
}


# The judgement, apart from pytest.


def parse_expected_skips(text: str, conditions: Collection[str] = CONDITIONS) -> tuple[ExpectedSkip, ...]:
    """The entries of the list; raises ValueError with the entry when one is incomplete or names no known condition."""
    entries = []
    for table in tomllib.loads(text).get("skip", []):
        if set(table) != {"test", "when", "why"}:
            raise ValueError(f"an expected skip needs exactly test, when and why: {table}")
        if table["when"] not in conditions:
            raise ValueError(f"unknown condition {table['when']!r}; known: {', '.join(sorted(conditions))}")
        entries.append(ExpectedSkip(**table))
    return tuple(entries)


def judge_skips(
    skips: Sequence[Skip], entries: Sequence[ExpectedSkip], conditions: Mapping[str, Callable[[], bool]] = CONDITIONS
) -> list[str]:
    """One line for every skip that should not have been; conditions are asked only when a skip needs them."""
    held = {name: conditions[name]() for name in {e.when for e in entries if any(_fits(e, s.test) for s in skips)}}
    problems = []
    for skip in skips:
        fitting = [entry for entry in entries if _fits(entry, skip.test)]
        if any(held[entry.when] for entry in fitting):
            continue
        if fitting:
            names = " or ".join(sorted({entry.when for entry in fitting}))
            problems.append(f"{skip.test} skipped ({skip.reason}), but its condition does not hold here: {names}")
        else:
            problems.append(
                f"{skip.test} skipped ({skip.reason}): make it run, or list it in tests/expected_skips.toml"
            )
    return problems


def find_stale_entries(files: Collection[str], entries: Sequence[ExpectedSkip]) -> list[str]:
    """One line for every entry that fits none of the test files."""
    return [
        f"tests/expected_skips.toml lists {entry.test}, which fits no file: correct or delete the entry"
        for entry in entries
        if not any(_fits(entry, file) for file in files)
    ]


def _fits(entry: ExpectedSkip, test: str) -> bool:
    """A file that skips as a whole fits the patterns of its tests too; brackets of parameters are literal."""
    pattern = entry.test.replace("[", "[[]")
    return fnmatchcase(test, pattern) or ("::" not in test and pattern.startswith(f"{test}::"))


# The plugin.


class SkipGuard:
    """Watches a pytest session, prints what is wrong above pytest's own last line, and fails the session."""

    def __init__(
        self,
        entries: Sequence[ExpectedSkip],
        conditions: Mapping[str, Callable[[], bool]] = CONDITIONS,
    ) -> None:
        self._entries = entries
        self._conditions = conditions
        self._skips: list[Skip] = []
        self.problems: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.problems = judge_skips(self._skips, self._entries, self._conditions)
        if self.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.problems:
            terminalreporter.section("skips that fail this run", red=True, bold=True)
            for problem in self.problems:
                terminalreporter.line(problem, red=True)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self._skips.append(Skip(test=report.nodeid, reason=reason.removeprefix("Skipped: ")))


def main(arguments: Sequence[str]) -> int:
    os.chdir(ROOT)
    entries = parse_expected_skips(EXPECTED_SKIPS.read_text(encoding="utf-8"))
    if stale := find_stale_entries({path.as_posix() for path in Path("tests").rglob("test_*.py")}, entries):
        print(*stale, sep="\n", file=sys.stderr)  # before the tests, not at their end: a file that went takes its entry
        return 1
    guard = SkipGuard(entries)
    spread = [] if arguments else spread_over_cores()
    return int(pytest.main(["-m", "not slow", *spread, *arguments], plugins=[guard]))


def spread_over_cores() -> list[str]:
    """A worker a core, whole files each, in the order of tests/conftest.py; one core is one process.

    Threads of torch do not multiply that.
    """
    cores = min(4, len(os.sched_getaffinity(0)))
    if cores < 2:
        return []
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return ["-n", str(cores), "--dist", "loadfile", "--no-loadscope-reorder"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
