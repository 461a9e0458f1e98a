"""A pytest plugin: the fixture ``hotloop`` records a training function in fresh processes and asserts on the results.

pytest loads this file in every session (entry point pytest11), so it imports nothing but pytest until a test asks.
"""

from __future__ import annotations

import os
import sys

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import NoReturn

    from hotloop.core.check import Judged
    from hotloop.core.findings import Finding
    from hotloop.core.report import Report

CALL = "from hotloop.integrations.pytest import call_recorded; call_recorded({!r})"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("hotloop").addoption(
        "--hotloop-update-baseline",
        action="store_true",
        help="write the recorded step times to the baseline files, in place of judging them",
    )


@pytest.fixture
def hotloop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainingRecorder:
    """Records training functions, each launch in a fresh process, and returns results to assert on."""
    return TrainingRecorder(request, tmp_path_factory.mktemp("hotloop"))


class TrainingRecorder:
    """The value of the fixture ``hotloop``."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._count = 0

    def watch(
        self, function: Callable[..., object], *arguments: object, launches: int = 1, timeout_s: float = 300.0
    ) -> RecordedLaunches:
        """Call ``function(*arguments)`` under ``hotloop run``, in ``launches`` fresh processes one after the other.

        The function is at the top level of a module, which each process imports again, and the arguments can be
        pickled. It should take 20 steps or more. One launch is enough for findings and memory; step times need
        several, because they differ between launches. ``timeout_s`` is the limit for each launch, in seconds.

        Raises UsageError for another kind of function, and fails the test if a launch fails.
        """
        __tracebackhide__ = True
        import pickle
        import signal
        import subprocess

        from hotloop.core.errors import UsageError

        code, name = getattr(function, "__code__", None), getattr(function, "__qualname__", "")
        if code is None or not name.isidentifier() or launches < 1:
            raise UsageError(f"watch({name or function!r}, launches={launches}): give a function at the top level of a "
                             "module, and at least 1 launch")  # fmt: skip
        (self._folder / name).write_bytes(  # in the working folder: the same command, whatever that is called
            pickle.dumps((sys.path, os.getcwd(), code.co_filename, function.__module__, name, pickle.dumps(arguments)))
        )
        run = [sys.executable, "-m", "hotloop", "run", "--quiet", "--no-probe", "--name"]
        folders = []
        for _ in range(launches):
            self._count += 1
            folders.append(self._folder / ".hotloop" / f"launch-{self._count}")
            words = [*run, folders[-1].name, "--", sys.executable, "-c", CALL.format(name)]
            with subprocess.Popen(
                words,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            ) as launch:
                try:
                    shown, _ = launch.communicate(timeout=timeout_s)
                except BaseException as error:
                    os.killpg(launch.pid, signal.SIGKILL)  # with the training, which hotloop run would leave behind
                    if not isinstance(error, subprocess.TimeoutExpired):
                        raise
                    shown = f"it took more than {timeout_s:g} s"
            if launch.returncode:
                pytest.fail(f"{name} failed with exit code {launch.returncode}:\n{shown}")
        return RecordedLaunches(self._request, folders)


class RecordedLaunches:
    """What ``watch`` recorded: ``reports`` has one Report per launch."""

    def __init__(self, request: pytest.FixtureRequest, folders: Sequence[Path]) -> None:
        from hotloop.pipeline.runs import read_report

        self._request = request
        self.folders = tuple(map(str, folders))
        self.reports: tuple[Report, ...] = tuple(map(read_report, self.folders))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the last launch whose rules fired in every launch."""
        fired = [{one.rule for one in report.findings} for report in self.reports]
        return tuple(one for one in self.reports[-1].findings if all(one.rule in rules for rules in fired))

    def assert_finding(self, rule: str, *, severity: str = "info") -> None:
        """Fail unless every launch has a finding of this rule, in the last launch at least this severe."""
        __tracebackhide__ = True
        found = [one for one in self._find(severity) if one.rule == self._known(rule)]
        if not found:
            self._fail(f"no finding of {rule} with severity {severity} or above", self.findings)

    def assert_no_findings(
        self, *rules: str, severity: str = "medium", tips: bool = False, ignore: Iterable[str] = ()
    ) -> None:
        """Fail if every launch has a problem of at least this severity: ``high``, ``medium``, ``low`` or ``info``.

        With ``rules``, only these count, at any severity, and a rule that could not be judged fails the test, too.
        ``tips`` counts tips as well as problems; ``ignore`` has ids of rules that do not count. Costs outside the
        steady steps, such as imports, count only with ``rules``: they are most of a run of a few steps.

        Raises UsageError for an unknown rule or severity.
        """
        __tracebackhide__ = True
        wanted, left_out = {self._known(one) for one in rules}, {self._known(one) for one in ignore}
        found = [
            one
            for one in self._find("info" if rules else severity)
            if one.rule not in left_out
            and (one.rule in wanted if rules else one.base == "steady" and (tips or one.kind.value == "fault"))
        ]
        if found:
            self._fail(f"findings in every launch ({len(self.reports)} recorded): {len(found)}", found)
        for one in self.reports[-1].skipped:
            if one.rule in wanted:
                self._fail(f"{one.rule} was not judged: {one.reason}", ())

    def assert_peak_memory(self, most_mib: float) -> None:
        """Fail if a launch used more than ``most_mib`` MiB: of the accelerator, else of the host with Python itself.

        Fails, too, if the peak of a launch is unknown.
        """
        __tracebackhide__ = True
        for report in self.reports:
            peak = None if report.memory is None else report.memory.peak_bytes
            if peak is None or peak > most_mib * 2**20:
                shown = "unknown" if peak is None else f"{peak / 2**20:,.0f} MiB"
                self._fail(f"peak memory is {shown}, but at most {most_mib:,.0f} MiB is allowed", ())

    def assert_step_time(self, baseline: str, *, tolerance_ratio: float = 0.05, strict: bool = False) -> Judged | None:
        """Fail if the mean step is longer than that of the baseline file, beyond the tolerance and the noise.

        The spread between launches gives a 98% interval for the change, as in ``hotloop check``; the test fails if all
        of it is above ``tolerance_ratio`` (a share of the baseline's step). If the interval includes the tolerance, or
        another machine wrote the baseline, the result is inconclusive: a warning, or a failure if ``strict``.
        ``baseline`` is relative to the test's file; ``pytest --hotloop-update-baseline`` writes it. If steps do another
        amount of work than in the baseline, the time per unit is judged. The result is in the JUnit file, too.

        Raises UsageError with fewer than two launches on either side.
        """
        __tracebackhide__ = True
        import warnings

        from hotloop.core.check import CheckVerdict
        from hotloop.core.errors import UsageError
        from hotloop.evidence.analyze.check import CheckLimits
        from hotloop.evidence.analyze.launch import write_baseline
        from hotloop.pipeline.comparisons import check_runs

        path = self._request.path.parent / baseline
        updates = self._request.config.getoption("--hotloop-update-baseline")
        if not updates and not path.exists():
            self._fail(f"no baseline {path}; write it: pytest --hotloop-update-baseline", ())
        check, launches = check_runs(
            self.folders, () if updates else (str(path),), CheckLimits(step_ratio=tolerance_ratio)
        )
        if len(launches) < 2 or (not updates and check.baseline_count < 2):
            raise UsageError("one launch does not show the noise between launches: give watch(..., launches=3) or "
                             "more, for the baseline, too")  # fmt: skip
        if updates:
            path.write_text(write_baseline(path, launches, check.command, keep=False)[0])
            return None
        judged = next((one for one in check.judged if one.decides and one.name != "memory_peak_bytes"), None)
        if judged is None:
            self._fail("; ".join(f"{one.id}: {one.reason}" for one in check.skipped), ())
        text = f"{judged.name} {judged.verdict.value}: {judged.reason}; {check.noise}"
        self._request.node.user_properties.append(("hotloop", text))
        if judged.verdict is CheckVerdict.REGRESSION or (strict and judged.verdict is CheckVerdict.INCONCLUSIVE):
            self._fail(text, self.findings)
        if judged.verdict is CheckVerdict.INCONCLUSIVE:
            warnings.warn(f"hotloop: {'; '.join((text, *check.warnings))}", stacklevel=2)
        return judged

    def _find(self, severity: str) -> list[Finding]:
        from hotloop.core.errors import UsageError, suggest_known
        from hotloop.core.findings import Severity

        known = [one.value for one in Severity]
        if severity not in known:
            raise UsageError(f"unknown severity {severity!r}{suggest_known(severity, known)}")
        return [one for one in self.findings if known.index(one.severity.value) <= known.index(severity)]

    def _known(self, rule: str) -> str:
        from hotloop.judge.diagnose import RULES

        return RULES[rule].id

    def _fail(self, text: str, findings: Sequence[Finding]) -> NoReturn:
        __tracebackhide__ = True
        lines = [f"  {one.severity.value}: {one.title} [{one.rule}]" for one in findings]
        pytest.fail("\n".join((f"hotloop: {text}", *lines, f"see: hotloop report {self.folders[-1]}")))


def call_recorded(call: str) -> None:
    """In a process of ``watch``: import the function's file as the test session had it, and call it."""
    import pickle
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    paths, folder, file, module_name, name, arguments = pickle.loads(Path(call).read_bytes())
    sys.path[:] = paths
    os.chdir(folder)
    spec = spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name)(*pickle.loads(arguments))
