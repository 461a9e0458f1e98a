"""The zoo, the known set: runs planted and healthy trainings under hotloop and writes docs/accuracy.md.

A planted run first stores hotloop's forecast; only then is its twin run: fixed, faulty, fixed, faulty and so on under
the same instrument, until both sides' fastest runs repeat. While a pass runs, each scenario and level has a file under
build/, so that an interrupted zoo goes on where it stopped; ``--summarize`` makes one table of them in
benchmarks/results/zoo/ and the page from that table. Scripts that nobody has seen are scored by fresh.py.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import fnmatch
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accuracy import LOUD, has_repeated, realised_saving, time_per_unit_ns, write_accuracy
from scenarios import Scenario, load_scenarios
from shaped_link import NoLinkError, shaped_link
from tables import Table, read_table, write_table
from try_by_hand import NOT_APPLICABLE, TECHNIQUES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCHEMA = "hotloop.zoo/1"
PAIRS = (2, 5)
"""How often a twin runs each side: at least, and at most."""
BUSY_RATIO = 0.10
"""Share of the machine's CPU time that others may use during the runs before a result is marked as disturbed."""
WORK = ROOT / ".passes" / "zoo"
TABLES = ROOT / "benchmarks" / "results" / "zoo"
PAIRS_RESULT = ROOT / "benchmarks" / "results" / "what_if_pairs.json"
QUIET = ("--no-probe", "--no-deep")
ABORT_AT_EXIT = "terminate called without an active exception"
"""torch 2.13 with gloo says so and aborts when its worker outlives the interpreter, after the script's last line.

Without hotloop 8 of 32 runs of a two-rank script on busy cores did; what was recorded is complete.
"""


class RunFailed(Exception):
    """A training under hotloop gave no report that can be used; the text says why, in one line."""

    code: int | None = None
    """What the command ended with, where that is why."""


class NotApplicable(Exception):
    """The technique changes nothing in this script."""


@dataclass(frozen=True)
class Bench:
    """Where and with what the runs are made."""

    hotloop: tuple[str, ...]
    out: Path
    commit: str
    machine: Mapping[str, Any]
    try_others: bool
    twins: bool = True
    turn: Path | None = None
    """A lock file: each training runs while it is held, so that other work on the machine can take turns."""
    others: Others = field(default_factory=lambda: Others())


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    scenarios = choose_scenarios(options.split, options.only)
    commit = options.commit or describe_commit()
    folder = WORK / commit
    if options.summarize:
        return summarize(folder, commit)
    bench = Bench(
        hotloop=tuple(options.hotloop.split()),
        out=folder,
        commit=commit,
        machine=describe_machine(),
        try_others=not options.no_twin,
        twins=not options.no_twin,
        turn=options.turn,
    )
    pending = [
        (s, level)
        for s in scenarios
        for level in s.levels
        if (options.level is None or level in (0, options.level))
        and (options.again or not _is_done(folder, s, level, needs_twin=not options.no_twin))
    ]
    print(f"{len(pending)} runs to do in {folder.name}", flush=True)
    for number, (scenario, level) in enumerate(pending[: options.limit], 1):
        started = time.monotonic()
        result = run_one(bench, scenario, level)
        words = describe_result(result)
        took_s = time.monotonic() - started
        print(f"[{number}/{len(pending)}] {scenario.id} level {level}: {words} ({took_s:.0f} s)", flush=True)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="scenario ids or rules, as in *input*")
    parser.add_argument("--split", choices=("tuned", "seen", "all"), default="all")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), help="this strength only (healthy runs stay)")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N runs")
    parser.add_argument("--again", action="store_true", help="also what is done already")
    parser.add_argument("--no-twin", action="store_true", help="only the diagnosis: no twin is run, nothing is tried")
    parser.add_argument("--commit", help="name of the results (default: the checkout's)")
    parser.add_argument("--hotloop", default=str(Path(sys.executable).with_name("hotloop")), help="the command to use")
    parser.add_argument("--turn", type=Path, metavar="FILE", help="hold this lock during each training (see flock(1))")
    parser.add_argument("--summarize", action="store_true", help="make the table of this commit, and the pages")
    return parser.parse_args(argv)


def choose_scenarios(split: str, pattern: str) -> tuple[Scenario, ...]:
    """Scenarios of the split whose id or one of whose rules matches."""
    found: tuple[Scenario, ...] = ()
    if split in ("tuned", "all"):
        found += load_scenarios(HERE / "scenarios.toml", "tuned")
    if split in ("seen", "all"):
        found += load_scenarios(HERE / "seen" / "scenarios.toml", "seen")
    return tuple(s for s in found if any(fnmatch.fnmatch(name, pattern) for name in (s.id, *s.rules)))


def describe_commit() -> str:
    """Short hash of the checkout, with ``-dirty`` when what the zoo measures differs from it."""
    head = _git("rev-parse", "--short=12", "HEAD") or "no-commit"
    changed = _git("status", "--porcelain", "--", "src", "tests/zoo", "pyproject.toml")
    return f"{head}-dirty" if changed else head


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def describe_machine() -> dict[str, Any]:
    """Processor, cores and versions that the figures depend on."""
    from importlib.metadata import PackageNotFoundError, version

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "unknown"

    names = [ln.split(":", 1)[1].strip() for ln in _lines("/proc/cpuinfo") if ln.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "hotloop": version_of("hotloop"),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def result_path(folder: Path, scenario: Scenario, level: int) -> Path:
    return folder / f"{scenario.split}-{scenario.id}-{level}.json"


def _is_done(folder: Path, scenario: Scenario, level: int, *, needs_twin: bool) -> bool:
    stored = load_result(result_path(folder, scenario, level))
    if stored is None or stored["status"] != "done":
        return False
    return not (needs_twin and scenario.rules) or "twin" in stored


def load_result(path: Path) -> dict[str, Any] | None:
    """A stored result; None when there is none, or when it was written by another version of the zoo."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return stored if stored.get("schema") == SCHEMA else None


def _store(path: Path, result: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(result, indent=1) + "\n")
    half.replace(path)


def run_one(bench: Bench, scenario: Scenario, level: int) -> dict[str, Any]:
    """Forecast, stored; then the twin; then opportunities that were not planted. The stored result."""
    path = result_path(bench.out, scenario, level)
    others = bench.others
    others.forget()
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "scenario": scenario.id,
        "split": scenario.split,
        "script": scenario.script.name,
        "rules": list(scenario.rules),
        "variant": scenario.variant,
        "reach": scenario.reach,
        "ranks": scenario.ranks,
        "level": level,
        "style": scenario.style,
        "unit": scenario.unit,
        "commit": bench.commit,
        "machine": dict(bench.machine),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "forecast",
    }
    try:
        result["forecast"] = run_under_hotloop(bench, scenario, level, ())
        result["others_ratio"] = result["others_in_forecast_ratio"] = others.ratio()
        _store(path, result)
        if scenario.rules and bench.twins:
            result["twin"] = run_twin(bench, scenario, level, result["forecast"])
        if bench.try_others:
            result["tried"] = try_opportunities(bench, scenario, level, result["forecast"])
        result["status"] = "done"
    except RunFailed as failure:
        result.update(status="failed", reason=str(failure))
    result["others_ratio"] = others.ratio()
    result["busy"] = result["others_ratio"] is not None and result["others_ratio"] > BUSY_RATIO
    _store(path, result)
    return result


class Others:
    """How much CPU time other programs use while trainings run, as a share of all cores' time."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._sum: list[float] | None = [0.0, 0.0, 0.0]

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        before = self._read()
        try:
            yield
        finally:
            after = self._read()
            if before is None or after is None or self._sum is None:
                self._sum = None
            else:
                self._sum = [s + b - a for s, a, b in zip(self._sum, before, after, strict=True)]

    def ratio(self) -> float | None:
        """0..1; None where it is not known. Whatever we and our children did not use, others did."""
        if self._sum is None:
            return None
        used, total, own_s = self._sum
        return round(max(0.0, used - own_s * os.sysconf("SC_CLK_TCK")) / max(1, total), 3)

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        lines = _lines("/proc/stat")
        if not lines:
            return None
        # User nice system idle iowait irq softirq steal: the two in the middle are rest.
        numbers = [int(word) for word in lines[0].split()[1:9]]
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own_s = sum(one.ru_utime + one.ru_stime for one in usage)
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers), own_s


def run_twin(bench: Bench, scenario: Scenario, level: int, forecast: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides, interleaved, with the fix as the forecast prescribes it."""
    arguments = fix_arguments(scenario, forecast)
    link = None if _keeps_link(scenario, forecast) else "none"
    twin: dict[str, Any] = {"fix_arguments": arguments, "fixed": [], "faulty": []}
    while not is_settled(*([r["time_per_unit_ns"] for r in twin[side]] for side in ("fixed", "faulty"))):
        for side, extra, rate in (("fixed", arguments, link), ("faulty", [], None)):
            report = run_under_hotloop(bench, scenario, level, QUIET, extra=extra, link_rate=rate)
            twin[side].append(_timing(report, scenario.unit))
    return twin


def is_settled(*sides: Sequence[float], pairs: tuple[int, int] = PAIRS) -> bool:
    """Whether every side has run often enough: its fastest run repeats, or it has had its most runs."""
    least, most = pairs
    return len(sides[0]) >= least and (len(sides[0]) >= most or has_repeated(*sides))


def fix_arguments(scenario: Scenario, forecast: Mapping[str, Any]) -> list[str]:
    """The script's arguments that apply the fix of the planted rule's finding, or ``--fixed`` alone."""
    out = ["--fixed"]
    for rule in scenario.rules:
        finding = next((f for f in forecast["findings"] if f["rule"] == rule), None)
        fix = (finding or {}).get("fix") or {}
        settings = fix.get("settings") or {}
        try:
            out += [word.format(**settings) for word in scenario.fix_arguments.get(fix.get("technique", ""), ())]
        except KeyError:
            # The fix leaves a setting open; the script's own --fixed stands for it.
            continue
    return out


def _keeps_link(scenario: Scenario, forecast: Mapping[str, Any]) -> bool:
    """The fix of a slow link is in the program (sending less), so that the link stays as it is."""
    return any(
        f["rule"] == "slow-link" and (f.get("fix") or {}).get("technique") in scenario.fix_arguments
        for f in forecast["findings"]
    )


def _timing(report: Mapping[str, Any], unit: str) -> dict[str, Any]:
    time_ns = time_per_unit_ns(report, unit)
    if time_ns is None:
        raise RunFailed(f"the report states no time per {unit}")
    step = report["step"]
    keep = ("count", "steady_count", "unit", "units_per_step", "mean_ns", "median_ns", "cv_ratio")
    return {"time_per_unit_ns": round(time_ns, 1), **{name: step.get(name) for name in keep}}


def try_opportunities(
    bench: Bench, scenario: Scenario, level: int, forecast: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Every opportunity of severity high or medium that was not planted, with and without, interleaved."""
    tried = []
    for finding in forecast["findings"]:
        rule = finding["rule"]
        loud = finding["kind"] == "opportunity" and finding["severity"] in LOUD
        if not loud or rule in scenario.rules or rule not in TECHNIQUES:
            continue
        settings = (finding.get("fix") or {}).get("settings") or {}
        unit = "sample" if rule == "small-batch" else "step"
        entry: dict[str, Any] = {
            "rule": rule,
            "settings": settings,
            "unit": unit,
            "low_ratio": finding["saving"]["low_ratio"],
            "with_ns": [],
            "without_ns": [],
        }
        by_hand = (str(HERE / "try_by_hand.py"), rule, json.dumps(settings))
        try:
            while not is_settled(entry["with_ns"], entry["without_ns"]):
                report = run_under_hotloop(bench, scenario, level, QUIET, launcher=by_hand)
                entry["with_ns"].append(_timing(report, unit)["time_per_unit_ns"])
                report = run_under_hotloop(bench, scenario, level, QUIET)
                entry["without_ns"].append(_timing(report, unit)["time_per_unit_ns"])
        except NotApplicable:
            entry["reason"] = "the script has nothing that this technique changes"
        except RunFailed as failure:
            entry["reason"] = str(failure)
        tried.append(entry)
    return tried


def run_under_hotloop(
    bench: Bench,
    scenario: Scenario,
    level: int,
    flags: Sequence[str],
    *,
    extra: Sequence[str] = (),
    link_rate: str | None = None,
    launcher: Sequence[str] = (),
) -> dict[str, Any]:
    """The JSON report of one training, without what is only for drawing and without this machine's paths.

    ``extra`` are more arguments for the script, ``launcher`` words before it. ``link_rate`` replaces the scenario's.
    """
    # Not in /tmp: checkpoints have to reach a real disk.
    home = ROOT / ".hotloop"
    home.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=home, prefix="zoo-", ignore_cleanup_errors=True))
        )
        training = training_command(scenario, level, extra, launcher)
        if scenario.link_rates:
            rate = link_rate or scenario.link_rates[level - 1]
            try:
                link = stack.enter_context(shaped_link(rate))
            except NoLinkError as error:
                raise RunFailed(str(error)) from error
            training = [sys.executable, str(HERE / "two_hosts.py"), *link.ends, *training[1:]]
        try:
            with take_turn(bench.turn):
                report, _ = run_hotloop(
                    [*bench.hotloop, "run", *flags], training, folder, timeout_s=scenario.timeout_s, others=bench.others
                )
        except RunFailed as failure:
            if failure.code == NOT_APPLICABLE and launcher:
                raise NotApplicable from failure
            raise
        for drawing in ("timelines", "runs"):
            report.pop(drawing, None)
        report["stdout_tail"] = scrub((folder / "stdout").read_text(errors="replace")[-500:], folder)
        return report


def run_hotloop(
    words: Sequence[str],
    training: Sequence[str],
    folder: Path,
    *,
    timeout_s: float,
    others: Others,
    logs: Path | None = None,
) -> tuple[dict[str, Any], float]:
    """The JSON report of a training that runs in the folder, without this machine's paths, and its wall time in s.

    ``words`` are hotloop's command with its flags. Output and the report go to ``logs``; None: to the folder. Raises
    RunFailed.
    """
    logs = logs or folder
    target = logs / "report.json"
    began_s = time.monotonic()
    with others.watch():
        command = [*words, "--json", str(target), "-q", "--", *training]
        code, tail = run_command(command, folder, timeout_s, logs=logs)
    wall_s = time.monotonic() - began_s
    if code is None or (code != 0 and ABORT_AT_EXIT not in (logs / "stderr").read_text(errors="replace")):
        how = f"ran longer than {timeout_s:.0f} s" if code is None else f"ended with code {code}"
        failure = RunFailed(f"the training {how}: {scrub(tail, folder)}")
        failure.code = code
        raise failure
    try:
        report: dict[str, Any] = scrub(json.loads(target.read_text()), folder)
    except (OSError, ValueError) as error:
        raise RunFailed(f"no JSON report: {scrub(str(error), logs)}") from error
    if not (report.get("outcome") or {}).get("training_seen"):
        raise RunFailed("hotloop saw no training")
    return report, wall_s


def run_copy(
    words: Sequence[str],
    training: Sequence[str],
    folder: Path,
    *,
    python: Path,
    work: Path,
    timeout_s: float,
    others: Others,
) -> tuple[dict[str, Any], float]:
    """As ``run_hotloop``, in a fresh copy of the folder that is made in ``work``.

    ``{python}`` and ``{torchrun}`` in the training's words are replaced by the interpreter's.
    """
    work.mkdir(parents=True, exist_ok=True)
    known = {"{python}": [str(python)], "{torchrun}": [str(python), "-m", "torch.distributed.run"]}
    with tempfile.TemporaryDirectory(dir=work, prefix="run-", ignore_cleanup_errors=True) as name:
        home, logs = Path(name) / "scripts", Path(name) / "outside"
        shutil.copytree(
            folder, home, ignore=shutil.ignore_patterns("__pycache__", "scenarios.toml", ".git", ".hotloop")
        )
        logs.mkdir()
        command = [word for given in training for word in known.get(given, [given])]
        return run_hotloop(words, command, home, timeout_s=timeout_s, others=others, logs=logs)


def training_command(
    scenario: Scenario, level: int, extra: Sequence[str] = (), launcher: Sequence[str] = ()
) -> list[str]:
    """The words that start the scenario's training on this machine, without a shaped link."""
    script = [*launcher, str(scenario.script), *(["--level", str(level)] if level else []), *extra]
    if scenario.ranks > 1 and not scenario.link_rates:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        return [torchrun, "--standalone", "--nproc-per-node", str(scenario.ranks), *script]
    return [sys.executable, *script]


def scrub(value: Any, folder: Path) -> Any:
    """The value with this machine's folders and host name replaced, through lists and mappings."""
    if isinstance(value, str):
        for known, word in ((str(folder), "."), (f"{ROOT}/", ""), (str(ROOT), "."), (platform.node(), "host")):
            value = value.replace(known, word) if known else value
        return value
    if isinstance(value, Mapping):
        return {k: scrub(v, folder) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrub(v, folder) for v in value]
    return value


@contextlib.contextmanager
def take_turn(lock: Path | None) -> Iterator[None]:
    """Hold the lock file, when there is one, as flock(1) does."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_command(
    command: Sequence[str], folder: Path, timeout_s: float, logs: Path | None = None
) -> tuple[int | None, str]:
    """Exit code (None after a timeout) and the last line of stderr. Leaves no process of the command running.

    Output goes to ``stdout`` and ``stderr`` in ``logs``; None: in ``folder``, where the command runs.
    """
    logs = logs or folder
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    # A loader's or rank's own choice of threads must not depend on the shell that started the zoo.
    env.pop("OMP_NUM_THREADS", None)
    with (logs / "stderr").open("w+") as errors, (logs / "stdout").open("w") as output:
        child = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=errors, start_new_session=True)
        try:
            code: int | None = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
            end_tree(child)
        except BaseException:
            end_tree(child)
            raise
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    telling = [line for line in lines if "Error" in line or "error" in line]
    return code, (telling or lines or [""])[-1][:300]


def end_tree(child: subprocess.Popen[bytes], patience_s: float = 5.0) -> None:
    """End a process that we started and all that it started: asked first, then killed, each by its id."""
    family = descendants(child.pid)
    for pid in (child.pid, *family):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(patience_s)
    for pid, started in {**family, child.pid: start_tick(child.pid)}.items():
        # The same id with another start is another's process by now.
        if started is not None and start_tick(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    child.wait()
    give_up = time.monotonic() + patience_s
    while any(_is_alive(pid, started) for pid, started in family.items()) and time.monotonic() < give_up:
        time.sleep(0.01)


def descendants(pid: int) -> dict[int, int | None]:
    """Ids of all processes below ``pid``, with the tick at which each started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _stat_field(int(entry.name), 3)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return {one: start_tick(one) for one in found}


def start_tick(pid: int) -> int | None:
    return _stat_field(pid, 21)


def _is_alive(pid: int, started: int | None) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and start_tick(pid) == started


def _stat_field(pid: int, index: int) -> int | None:
    """A numeric field of /proc/PID/stat, counted from 0; None when the process is gone."""
    fields = _stat(pid)
    return int(fields[index - 2]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name, in brackets, may hold anything.
    return text.rpartition(")")[2].split()


def describe_result(result: Mapping[str, Any]) -> str:
    """One line for the person who watches."""
    if result["status"] == "failed":
        return f"failed, {result['reason']}"
    said = [f"{f['rule']} {f['severity']}" for f in result["forecast"]["findings"][:3]]
    words = ", ".join(said) or "no findings"
    twin = result.get("twin")
    if twin is None:
        return words
    sides = ([r["time_per_unit_ns"] for r in twin[side]] for side in ("fixed", "faulty"))
    realised = realised_saving(*sides)
    planted = next((f for f in result["forecast"]["findings"] if f["rule"] == result["rules"][0]), None)
    saving = (planted or {}).get("saving") or {}
    forecast = saving.get("mid_ratio")
    shown = "none" if forecast is None else f"{forecast:.2f}"
    return f"{words}; forecast {shown}, realized {realised:.2f}" if realised is not None else words


def summarize(folder: Path, commit: str) -> int:
    """Make the table of what this commit's pass has, if it has run here, and draw the pages from the tables."""
    stored = [r for path in sorted(folder.glob("*.json")) if (r := load_result(path)) is not None]
    if stored:
        tables = [read_table(path) for path in TABLES.glob("*.jsonl")]
        header = {
            "pass": "zoo",
            "commit": commit,
            "machine": stored[0]["machine"],
            "date": max(r["date"] for r in stored),
            "seen_count": 1 + max((table.header["seen_count"] for table in tables), default=0),
        }
        write_table(TABLES / f"{commit}.jsonl", header, [keep_result(r) for r in stored])
    for name, text in draw_pages().items():
        (ROOT / "docs" / name).write_text(text)
        print(f"docs/{name} written")
    return 0


def keep_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a result in its table: all that is judged, without the rest of the report."""
    row = {k: v for k, v in result.items() if k not in ("schema", "machine", "commit", "forecast", "twin")}
    if "forecast" in result:
        keys = ("rule", "kind", "severity", "saving", "fix")
        row["forecast"] = {"findings": [{k: f.get(k) for k in keys} for f in result["forecast"]["findings"]]}
    if "twin" in result:
        twin = result["twin"]
        sides = {
            side: [{"time_per_unit_ns": r["time_per_unit_ns"]} for r in twin[side]] for side in ("fixed", "faulty")
        }
        row["twin"] = {"fix_arguments": twin["fix_arguments"], **sides}
    return row


def draw_pages(folder: Path = TABLES, pairs_path: Path = PAIRS_RESULT) -> dict[str, str]:
    """The text of both pages, by name."""
    expected = [(s.split, s.id, level) for s in choose_scenarios("all", "*") for level in s.levels]
    pairs = json.loads(pairs_path.read_text()) if pairs_path.is_file() else None
    return {
        name: write_accuracy(read_table(path), expected, pairs=pairs if name == "accuracy.md" else None)
        for name, path in choose_passes(folder).items()
    }


def choose_passes(folder: Path) -> dict[str, Path]:
    """accuracy.md shows the newest pass with twins, accuracy-diagnosis.md the newest without."""
    chosen = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda one: str(read_table(one).header["date"])):
        chosen["accuracy.md" if has_twins(read_table(path)) else "accuracy-diagnosis.md"] = path
    return chosen


def has_twins(table: Table) -> bool:
    return any(row.get("twin") for row in table.rows)


if __name__ == "__main__":
    sys.exit(main())
