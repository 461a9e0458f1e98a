"""What hotloop costs a training -> benchmarks/results/overhead.json and docs/overhead.md.

Run by `make overhead` (about six minutes on a quiet machine; `--resume` goes on with a pass that was cut off). Costs
are CPU time of the training thread or minima over many calls, which other work on the machine does not change; wall
time is used only where both sides of a ratio saw the same machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from hotloop.attach import sampling  # noqa: E402 (also from a checkout that is not installed)
from hotloop.attach.child import attach_environment  # noqa: E402

LOOP = ROOT / "benchmarks" / "overhead_loop.py"
RESULT = ROOT / "benchmarks" / "results" / "overhead.json"
TABLE = ROOT / "docs" / "overhead.md"
TRACEML = "traceml-ai==0.5.0"
BENCH_VENV = ROOT / ".venv-bench"

TEN_MS_STEP_NS = 10e6
LOOPS = {"mlp": "3-layer MLP with a DataLoader (6 modules)", "deep": "201 modules, root class known"}
LIMITS_NS = {"mlp": 20_000, "deep": 30_000}
PAIRS = 6
SAMPLER_LIMIT_RATIO = 0.005
MEMORY_LIMIT_BYTES = 30 << 20
IMPORT_LIMIT_NS = 30e6
HELP_LIMIT_RATIO = 3.0
SAMPLING_PERIOD_S = 0.5
"""Sampling from outside is on and off in turn for so long: ten samples, at the shortest interval there is."""
SAMPLING_S = 40.0
HOOK_ROUNDS = 1
WATCH_ROWS = 64
"""As hotloop.observe.session: one row in so many is watched with the wide patch at first, later fewer."""

_T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18)
"""Student's t for a two-sided 95 % interval, by degrees of freedom from 1."""

Result = dict[str, Any]


class Bench:
    """Runs processes of the loop, each with a run folder of its own."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        self._python = python
        self._count = 0

    def run(self, mode: str, *arguments: str, attached: bool, command: Sequence[str] = ()) -> Result:
        """The JSON of one process; ``command`` replaces the interpreter (and is told where to write)."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON"))}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        stacks = sampling.StackSampling(folder / "processes")
        if attached:
            (folder / "processes").mkdir()
            environment = attach_environment(environment, folder, {"deep": True, "outside": True})
            stacks.tick()
        out = folder / "out.json"
        if command:
            full = [*command, "--args", mode, *arguments, "--out", str(out)]
        else:
            full = [self._python, str(LOOP), mode, *arguments, "--out", str(out)]
        done = subprocess.run(full, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)
        outside_ns = _thread_cpu_ns(stacks)
        stacks.stop()
        if done.returncode or not out.exists():
            raise RuntimeError(f"{' '.join(full)} ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:]}")
        found: Result = json.loads(out.read_text())
        found["outside_ns"] = outside_ns
        found["outside_samples"] = sum(_count_samples(path) for path in folder.glob("processes/*.samples"))
        if "attached" in found and found["attached"] is not attached:
            raise RuntimeError(f"the agent was {'not ' * attached}attached in {' '.join(full)}")
        return found


def _thread_cpu_ns(stacks: sampling.StackSampling) -> int:
    """CPU time of the thread that samples from outside so far: reading, waking up and looking for processes."""
    thread = stacks._thread
    if thread is None or thread.ident is None:
        return 0
    return time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))


def _count_samples(path: Path) -> int:
    lines = map(json.loads, path.read_text().splitlines())
    return sum(count[3] for line in lines for count in line.get("counts", ()))


class _InTurns(sampling._Sampled):
    """Sampled in every second period of SAMPLING_PERIOD_S."""

    def sample(self, now_s: float) -> bool:
        return super().sample(now_s) if is_sampled(now_s) else True


def is_sampled(now_s: float) -> bool:
    return int(now_s / SAMPLING_PERIOD_S) % 2 == 0


def mean_interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences and its two-sided 95 % interval (Student's t)."""
    mean = statistics.fmean(differences)
    n = len(differences)
    if n < 2:
        raise ValueError("an interval needs two pairs or more")
    t = _T_975[n - 2] if n - 2 < len(_T_975) else 1.96 + 2.5 / (n - 1)
    half = t * statistics.stdev(differences) / n**0.5
    return mean, mean - half, mean + half


def median_interval(differences: Sequence[float], rounds: int = 2000) -> tuple[float, float, float]:
    """Median of paired differences and its 95 % bootstrap interval."""
    draw = random.Random(0)
    n = len(differences)
    medians = sorted(statistics.median(draw.choices(differences, k=n)) for _ in range(rounds))
    return statistics.median(differences), medians[int(0.025 * rounds)], medians[int(0.975 * rounds) - 1]


def judge(interval: tuple[float, float, float], limit_ns: float) -> str:
    """Whether a limit is kept, by the 95 % interval of a paired comparison.

    >>> judge((5.0, 3.0, 7.0), 8.0), judge((5.0, 3.0, 7.0), 2.0), judge((5.0, 3.0, 7.0), 6.0)
    ('met', 'missed', 'undecided')
    """
    _, low, high = interval
    return "met" if high <= limit_ns else "missed" if low > limit_ns else "undecided"


# -- the five parts ---------------------------------------------------------------------------------------------------


def sum_over_hooks(found: Result, narrowed: bool) -> Result:
    """Calls per step x minimum cost; with the patch narrowed to the root classes, nested modules pass in no time."""
    hooks, calls = found["hooks"], found["calls_per_step"]
    outer = "forward_narrowed" if narrowed else "forward"
    parts = {
        "next": (calls["wrap_loader_next"], hooks["next"]),
        "fetch": (calls["wrap_fetcher_fetch"], hooks["fetch"]),
        "forward, outermost": (1.0, hooks[outer]),
        "loss": (calls["outermost"] - 1.0, hooks["forward_loss"]),
        "backward": (calls["wrap_run_backward"], hooks["backward"]),
        "optimizer step, row and its writing": (calls["wrap_optimizer_step"], hooks["step_and_row"]),
    }
    share = 1 / WATCH_ROWS if narrowed else 1.0
    parts["forward, nested"] = (calls["nested"] * share, hooks["nested"])
    table = {name: {"calls": n, "min_ns": c["min_ns"], "sum_ns": n * c["min_ns"]} for name, (n, c) in parts.items()}
    if narrowed:
        switches = 1 / WATCH_ROWS
        cost_ns = max(0.0, found["switch_ns"])
        table["switching the patch and back"] = {"calls": switches, "min_ns": cost_ns, "sum_ns": switches * cost_ns}
    whole = found["whole_step_cpu_ns"]
    return {
        "hooks": table,
        "sum_ns": sum(row["sum_ns"] for row in table.values()),
        "median_sum_ns": sum(n * c["median_ns"] for n, c in parts.values()),
        "whole_hollow_step_cpu_ns": whole["without_nested"] + share * whole["nested"],
        "row_write_min_ns": found["row_write_min_ns"],
        "lost_rows": found["lost_rows"],
    }


def least_of(runs: Sequence[Result]) -> Result:
    """The first run with the smallest cost of every hook in any of them."""
    hooks = {
        name: {key: min(run["hooks"][name][key] for run in runs) for key in ("min_ns", "median_ns")}
        for name in runs[0]["hooks"]
    }
    switch_ns = min((run["switch_ns"] for run in runs if run.get("switch_ns") is not None), default=None)
    return runs[0] | {"hooks": hooks} | ({} if switch_ns is None else {"switch_ns": switch_ns})


def measure_hooks(bench: Bench, quick: bool) -> Result:
    steps = "500" if quick else "3000"
    runs: dict[str, list[Result]] = {"mlp": [], "deep": []}
    for _ in range(1 if quick else HOOK_ROUNDS):  # in turn: a core that is slow for a while then slows both
        for model, done in runs.items():
            done.append(bench.run("hooks", "--model", model, "--steps", steps, attached=True))
    mlp, deep = (least_of(done) for done in runs.values())
    found = {
        "mlp": sum_over_hooks(mlp, narrowed=False),
        "deep": sum_over_hooks(deep, narrowed=False),
        "deep_narrowed": sum_over_hooks(deep, narrowed=True),
        "modules": {"mlp": mlp["modules"], "deep": deep["modules"]},
        "n": int(steps),
        "rounds": len(runs["mlp"]),
        "torch": mlp["torch"],
    }
    return found


def measure_in_place(bench: Bench, quick: bool) -> Result:
    """The MLP's hooks inside real steps: trimmed means, with the caches as cold as torch's operators leave them."""
    return bench.run("place", "--model", "mlp", "--steps", "400" if quick else "3000", attached=True)


def compare_blocks(bench: Bench, quick: bool) -> Result:
    """Session on and off in short blocks of one process."""
    found = {}
    for model in ("mlp", "deep"):
        steps = 3200 // (8 if quick else 1)
        blocks = bench.run("toggle", "--model", model, "--steps", str(steps), attached=True)
        differences = [on - off for on, off in zip(blocks["on_ns"], blocks["off_ns"], strict=True)]
        interval = median_interval(differences)
        found[model] = {
            "difference_ns": interval[0],
            "interval_ns": interval[1:],
            "step_ns": statistics.median(blocks["off_ns"]),
            "n": len(differences),
            "replayed_ns": blocks["replayed_ns"],
            "in_place_ratio": interval[0] / blocks["replayed_ns"],
        }
        found[model] |= {"limit_ns": LIMITS_NS[model], "verdict": judge(interval, LIMITS_NS[model])}
    return found


def compare_sampling(bench: Bench, quick: bool) -> Result:
    """One process, sampled from outside in every second period: CPU time per step with and without, in pairs."""
    with unittest.mock.patch.object(sampling, "_Sampled", _InTurns):
        seconds = 6.0 if quick else SAMPLING_S
        done = bench.run("clock", "--model", "mlp", "--seconds", str(seconds), attached=True)
    found: Result = {"samples": done["outside_samples"], "period_s": SAMPLING_PERIOD_S}
    taken_ns = done["blocks"][0][0] + 1_000_000_000  # by then the process is being read
    blocks = [block for block in done["blocks"] if block[0] >= taken_ns]
    for column, name in ((2, "thread"), (3, "process")):
        differences = pair_periods([(block[0], block[1], block[column]) for block in blocks])
        interval = median_interval(differences)
        found[name] = {"difference_ns": interval[0], "interval_ns": interval[1:], "n": len(differences)}
    found["step_ns"] = statistics.median(block[2] for block in blocks)
    return found


def pair_periods(blocks: Sequence[tuple[int, int, float]]) -> list[float]:
    """Differences of a sampled period to the one after it, of the medians of their blocks (start, end, cost), in ns.

    Blocks that lie in two periods are left out.

    >>> pair_periods([(0, 1, 5.0), (2, 3, 7.0), (400_000_000, 600_000_000, 99.0), (600_000_000, 600_000_001, 4.0)])
    [2.0]
    """
    periods: dict[int, list[float]] = {}
    period_ns = int(SAMPLING_PERIOD_S * 1e9)
    for start_ns, end_ns, cost_ns in blocks:
        if start_ns // period_ns == end_ns // period_ns:
            periods.setdefault(start_ns // period_ns, []).append(cost_ns)
    medians = {period: statistics.median(costs) for period, costs in periods.items()}
    return [
        cost_ns - medians[period + 1]
        for period, cost_ns in medians.items()
        if period % 2 == 0 and period + 1 in medians
    ]


def compare_processes(bench: Bench, quick: bool, traceml: Sequence[str] | str) -> Result:
    """Whole processes in turn, as often each: bare, with hotloop, with torch.profiler, with TraceML."""
    tools: dict[str, tuple[bool, tuple[str, ...], tuple[str, ...]]] = {
        "hotloop": (True, (), ()),
        "bare": (False, (), ()),
        "torch.profiler": (False, ("--around", "profiler"), ()),
    }
    if not isinstance(traceml, str):
        tools["traceml"] = (False, ("--around", "traceml"), (*traceml, str(LOOP)))
    arguments = ("--model", "mlp", "--steps", "200" if quick else "1000")
    runs: dict[str, list[Result]] = {name: [] for name in tools}
    for turn in range(2 if quick else PAIRS):
        for name in [*tools][turn % len(tools) :] + [*tools][: turn % len(tools)]:
            attached, around, command = tools[name]
            runs[name].append(bench.run("train", *arguments, *around, attached=attached, command=command))
    found = _against_bare(runs)
    if isinstance(traceml, str):
        found["traceml"] = {"skipped": traceml}
    interval = mean_interval_of(found["hotloop"])
    found["hotloop"] |= {"limit_ns": LIMITS_NS["mlp"], "verdict": judge(interval, LIMITS_NS["mlp"])}
    memory = found["memory"]
    memory["added_bytes"] = memory["hotloop"]["VmRSS"] - memory["bare"]["VmRSS"]
    memory["limit_bytes"] = MEMORY_LIMIT_BYTES
    memory["met"] = memory["added_bytes"] <= MEMORY_LIMIT_BYTES
    return found


def _against_bare(runs: Mapping[str, Sequence[Result]]) -> Result:
    bare = [statistics.median(run["blocks_ns"]) for run in runs["bare"]]
    found: Result = {"step_ns": statistics.median(bare), "memory": {}}
    for name, done in runs.items():
        found["memory"][name] = {
            key: int(statistics.median(run["memory_bytes"][key] for run in done))
            for key in ("VmRSS", "VmHWM", "RssAnon")
        }
        if name != "bare":
            cost = [statistics.median(run["blocks_ns"]) for run in done]
            interval = mean_interval([a - b for a, b in zip(cost, bare, strict=True)])
            found[name] = {
                "difference_ns": interval[0],
                "interval_ns": interval[1:],
                "n": len(cost),
                "share_ratio": interval[0] / found["step_ns"],
            }
    return found


def mean_interval_of(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    return entry["difference_ns"], entry["interval_ns"][0], entry["interval_ns"][1]


def find_width(bench: Bench) -> int:
    """A width of the MLP at which a step takes about 10 ms of CPU time here."""
    width = 1024
    for _ in range(3):
        arguments = ("--width", str(width), "--steps", "50", "--warmup", "25")
        blocks = bench.run("train", *arguments, attached=False)["blocks_ns"]
        ratio = statistics.median(blocks) / TEN_MS_STEP_NS
        if 0.8 <= ratio <= 1.25:
            break
        width = max(64, min(4096, int(width / ratio**0.6) // 16 * 16))
    return width


def measure_whole_run(bench: Bench, hooks: Mapping[str, Any], quick: bool) -> Result:
    """10 ms steps with the sampler on: CPU time of everything of ours over wall time.

    What the hooks add to a step comes from the MLP's blocks (``hooks``), with their interval; beside them the agent's
    thread and `hotloop run` use a core.
    """
    width = str(find_width(bench))
    sampler = bench.run("sampler", "--width", width, "--seconds", "6" if quick else "36", attached=True)
    hooks_ns, low_ns, high_ns = mean_interval_of(hooks)
    parts = []
    for part in sampler["parts"]:
        hooks_ratio = hooks_ns / part["step_ns"]
        parts.append(part | {"hooks_ratio": hooks_ratio, "share_ratio": part["sampler_ratio"] + hooks_ratio})

    def share_ratio(step_hooks_ns: float) -> float:
        beside_ns = sampler["sampler_ns"] + sampler["outside_ns"]
        return float((beside_ns + sampler["rows"] * step_hooks_ns) / sampler["wall_ns"])

    interval = share_ratio(hooks_ns), share_ratio(low_ns), share_ratio(high_ns)
    return {
        "width": int(width),
        "step_ns": sampler["wall_ns"] / sampler["rows"],
        "parts": parts,
        "jobs": describe_jobs(sampler),
        "share_ratio": interval[0],
        "interval_ratio": interval[1:],
        "limit_ratio": SAMPLER_LIMIT_RATIO,
        "verdict": judge(interval, SAMPLER_LIMIT_RATIO),
        "outside_ratio": sampler["outside_ns"] / sampler["wall_ns"],
        "outside_ns_per_sample": sampler["outside_ns"] / max(1, sampler["outside_samples"]),
    }


def describe_jobs(sampler: Result) -> Result:
    """CPU time of each part of the sampler's thread; waking up is what is left of the whole."""
    jobs = {name: job for name, job in sampler["jobs"].items() if job["runs"]}
    looks = jobs["keep_file"]["runs"]
    left_ns = sampler["sampler_ns"] - sum(job["ns"] for job in jobs.values())
    jobs["waking up, looking what is due"] = {"ns": max(0, left_ns), "runs": looks}
    return {
        name.strip("_").replace("_", " "): job | {"share_ratio": job["ns"] / sampler["wall_ns"]}
        for name, job in jobs.items()
    }


def measure_start(python: str, quick: bool) -> Result:
    """`import hotloop` and `hotloop --help`, against a bare Python."""
    n = 5 if quick else 21
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "PYTHON"))}
    environment["PYTHONPATH"] = str(ROOT / "src")
    import_code = (
        "import time; a = time.perf_counter_ns(); import hotloop; b = time.perf_counter_ns(); "
        "import sys; print(b - a, int('torch' in sys.modules))"
    )
    import_ns, torch_loaded = [], False
    for _ in range(n):
        words = subprocess.run(
            [python, "-c", import_code], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        import_ns.append(int(words[0]))
        torch_loaded |= words[1] == "1"
    script = Path(python).with_name("hotloop")
    help_command = [str(script), "--help"] if script.exists() else [python, "-m", "hotloop.cli.start", "--help"]
    commands = {"pass": [python, "-c", "pass"], "help": help_command}
    wall_ns: dict[str, list[int]] = {"pass": [], "help": []}
    cpu_ns: dict[str, list[int]] = {"pass": [], "help": []}
    for _ in range(n):
        for name, command in commands.items():
            wall, cpu = _time_process(command, environment)
            wall_ns[name].append(wall)
            cpu_ns[name].append(cpu)
    cpu_ratio = min(cpu_ns["help"]) / min(cpu_ns["pass"])
    return {
        "import_min_ns": min(import_ns),
        "import_median_ns": int(statistics.median(import_ns)),
        "import_loads_torch": torch_loaded,
        "import_limit_ns": int(IMPORT_LIMIT_NS),
        "import_met": min(import_ns) < IMPORT_LIMIT_NS and not torch_loaded,
        "help_min_ratio": min(wall_ns["help"]) / min(wall_ns["pass"]),
        "help_median_ratio": statistics.median(wall_ns["help"]) / statistics.median(wall_ns["pass"]),
        "help_cpu_min_ratio": cpu_ratio,
        "help_limit_ratio": HELP_LIMIT_RATIO,
        "help_met": cpu_ratio <= HELP_LIMIT_RATIO,
        "pass_min_ns": min(wall_ns["pass"]),
        "help_min_ns": min(wall_ns["help"]),
        "n": n,
    }


def _time_process(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, int]:
    """Wall and CPU time of one process, in ns."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_ns = time.perf_counter_ns()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    wall_ns = time.perf_counter_ns() - start_ns
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_ns, int(cpu_s * 1e9)


# -- TraceML, in an environment of its own ----------------------------------------------------------------------------


def install_traceml(python: str) -> list[str] | str:
    """The command that runs a script under TraceML; or why there is none."""
    command = BENCH_VENV / "bin" / "traceml"
    try:
        if not command.exists():
            subprocess.run([python, "-m", "venv", str(BENCH_VENV)], check=True, capture_output=True, timeout=120)
            pip = [str(BENCH_VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
            subprocess.run([*pip, TRACEML], check=True, capture_output=True, text=True, timeout=300)
        # torch comes from the development environment: the same build on both sides, and no second download
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        site = next((BENCH_VENV / "lib").glob("python3*")) / "site-packages"
        (site / "development.pth").write_text(purelib + "\n")
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        return f"{TRACEML} could not be installed: {' '.join(detail)}"
    return [str(command), "run"]


# -- what is written --------------------------------------------------------------------------------------------------


def describe_machine(python: str, torch_version: str) -> Result:
    model = "unknown"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        model = platform.processor() or "unknown"
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cores": cores,
        "system": f"{platform.system()} {platform.release()}",
        "python": version,
        "torch": torch_version,
        "load_before": os.getloadavg()[0],
    }


def us(value_ns: float) -> str:
    return f"{value_ns / 1e3:.1f} us"


def verdict(met: bool) -> str:
    return "met" if met else "missed"


def draw_sampling(whole: Mapping[str, Any], compared: Mapping[str, Any] | None) -> list[str]:
    """What sampling from outside costs; nothing of it in results from before it was compared."""
    ratio = whole.get("outside_ratio")
    if ratio is None or compared is None:
        return ["Sampling from outside, by `hotloop run`: not measured at that commit.", ""]
    lines = [
        f"`hotloop run` itself uses {ratio:.2%} of a core in the whole run above, "
        f"{us(whole['outside_ns_per_sample'])} of CPU time a sample. The training pays for being read: one process "
        f"of the MLP, sampled and not in turns of {compared['period_s']:g} s, {compared['samples']} samples, step "
        f"{us(compared['step_ns'])}.",
        "",
        "| CPU time of | added per step while sampled | 95 % interval | pairs of periods |",
        "|---|---|---|---|",
    ]
    for name, label in (("thread", "the training thread"), ("process", "all threads of its process")):
        part = compared[name]
        lines.append(f"| {label} | {us(part['difference_ns'])} | {_interval(part)} | {part['n']} |")
    return [*lines, ""]


def _pass(found: Mapping[str, Any]) -> str:
    pieces = found.get("pieces", 1)
    return "One pass" if pieces == 1 else f"A pass in {pieces} pieces"


def _interval(part: Mapping[str, Any]) -> str:
    low, high = part["interval_ns"]
    return f"{us(low)} to {us(high)}"


def draw_table(found: Result) -> str:
    """The page docs/overhead.md."""
    machine, hooks, blocks, processes = found["machine"], found["hooks"], found["blocks"], found["processes"]
    whole, start, memory, place = found["whole_run"], found["start"], processes["memory"], found["place"]
    lines = [
        "# What hotloop costs",
        "",
        "Written by `make overhead`; the numbers stand in `benchmarks/results/overhead.json`. "
        + ("The commit was not kept." if found["commit"] is None else f"{_pass(found)} at commit {found['commit']}."),
        "",
        f"{found['date']} · {machine['cpu']}, {machine['cores']} cores, {machine['system']} · "
        f"Python {machine['python']}, torch {machine['torch']} · "
        f"load {machine['load_before']:.1f} before and {machine['load_after']:.1f} after"
        + (" · quick trial, not a measurement" if found["quick"] else ""),
        "",
        "| what | measured | limit | |",
        "|---|---|---|---|",
    ]
    for name, how, part in (
        (LOOPS["mlp"], "pairs of processes", processes["hotloop"]),
        (LOOPS["mlp"], "pairs of blocks", blocks["mlp"]),
        (LOOPS["deep"], "pairs of blocks", blocks["deep"]),
    ):
        lines.append(
            f"| added per step, {name} | {us(part['difference_ns'])} ({_interval(part)}, {part['n']} {how}) "
            f"| {us(part['limit_ns'])} | **{part['verdict']}** |"
        )
    lines += [
        f"| whole run, steps of {whole['step_ns'] / 1e6:.1f} ms, sampler on | {whole['share_ratio']:.2%} "
        f"({whole['interval_ratio'][0]:.2%} to {whole['interval_ratio'][1]:.2%}) "
        f"| {whole['limit_ratio']:.1%} | **{whole['verdict']}** |",
        f"| resident memory | {memory['added_bytes'] / 2**20:+.1f} MiB | +{memory['limit_bytes'] / 2**20:.0f} MiB "
        f"| **{verdict(memory['met'])}** |",
        f"| `import hotloop` | {start['import_min_ns'] / 1e6:.1f} ms (median {start['import_median_ns'] / 1e6:.1f}) "
        f"| {start['import_limit_ns'] / 1e6:.0f} ms, no torch | **{verdict(start['import_met'])}** |",
        f"| `hotloop --help` against `python -c pass`, CPU time | {start['help_cpu_min_ratio']:.1f}x "
        f"(wall: min {start['help_min_ratio']:.1f}x, median {start['help_median_ratio']:.1f}x) "
        f"| {start['help_limit_ratio']:.0f}x | **{verdict(start['help_met'])}** |",
        "",
        "Added per step: CPU time of the training thread with and without, and the 95 % interval of the pairs' "
        "differences. Met: the whole interval lies below the limit; missed: above it. Processes: whole ones in turn "
        "(mean). Blocks: the session is on and off in turn within one process (median); an idle wrapper's first line, "
        "about 0.1 us a call, is on both sides, and so is what the agent does beside its hooks. Whole run: the MLP's "
        "cost in blocks over that step, plus CPU time of the agent's thread and of `hotloop run` over wall time.",
        "",
        "## hotloop and other tools, by the same method",
        "",
        f"{LOOPS['mlp']}, step {us(processes['step_ns'])}.",
        "",
        "| tool | added per step | 95 % interval | pairs | share | resident memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, label in (
        ("hotloop", "hotloop"),
        ("torch.profiler", "torch.profiler, always on"),
        ("traceml", f"TraceML ({TRACEML.partition('==')[2]}), `traceml run`"),
    ):
        part = processes[name]
        if "skipped" in part:
            lines.append(f"| {label} | not measured | {part['skipped']} | | | |")
            continue
        added = (memory[name]["VmRSS"] - memory["bare"]["VmRSS"]) / 2**20
        lines.append(
            f"| {label} | {us(part['difference_ns'])} | {_interval(part)} | {part['n']} | {part['share_ratio']:+.1%} "
            f"| {added:+.1f} MiB |"
        )
    lines += [
        "",
        "## What the report says of it",
        "",
        "The report's cost line multiplies calls by costs that are measured around empty calls in the training process "
        "at its end. Between torch's operators they are higher: by the ratio to what blocks say. The line is corrected "
        "by the MLP's (`IN_PLACE_RATIO` in hotloop.observe.overhead).",
        "",
        "| loop | pairs of blocks | empty calls | ratio |",
        "|---|---|---|---|",
    ]
    for model, name in LOOPS.items():
        part = blocks[model]
        if part["replayed_ns"] is None:
            lines.append(f"| {name} | {us(part['difference_ns'])} | not recorded | |")
            continue
        lines.append(
            f"| {name} | {us(part['difference_ns'])} | {us(part['replayed_ns'])} | {part['in_place_ratio']:.1f} |"
        )
    lines += [
        "",
        "## Where a step's hooks spend their time",
        "",
        "Calls of each hook in a real step, times its cost around an empty call (the smallest mean of 64 calls in a "
        f"row, of {hooks['n']} calls, in the best of {hooks['rounds']} processes), on a live session with its file, "
        "facts and subscribers: a lower bound, which shows where the time goes.",
        "",
        "| hook | calls per step | smallest cost | per step |",
    ]
    lines.append("|---|---|---|---|")
    names = LOOPS | {"deep": f"{hooks['modules']['deep']} modules, all watched", "deep_narrowed": LOOPS["deep"]}
    for key in names:
        lines.append(f"| **{names[key]}** | | | **{us(hooks[key]['sum_ns'])}** |")
        for name, row in hooks[key]["hooks"].items():
            lines.append(f"| {name} | {row['calls']:g} | {us(row['min_ns'])} | {us(row['sum_ns'])} |")
    lines += [
        "",
        f"Of the optimizer's row, writing it to the file takes {us(hooks['mlp']['row_write_min_ns'])}. A whole step "
        f"of empty calls costs {us(hooks['mlp']['whole_hollow_step_cpu_ns'])} of thread CPU time on the MLP, work of "
        "every 16th and 64th row included.",
        "",
        "## The same hooks in place",
        "",
        "On the MLP, between torch's operators: from a hook's start to its original's call, and from the original's "
        f"return to its own. Mean of {place['n']} steps without the slowest fiftieth (and the least), less the same "
        "clocks around no hook.",
        "",
        "| hook | calls per step | before | after | per step |",
        "|---|---|---|---|---|",
    ]
    for name, row in place["hooks"].items():
        lines.append(
            f"| {name} | {row['calls']:g} | {us(row['before_mean_ns'])} ({us(row['before_min_ns'])}) "
            f"| {us(row['after_mean_ns'])} ({us(row['after_min_ns'])}) "
            f"| {us(row['before_mean_ns'] + row['after_mean_ns'])} |"
        )
    lines += [
        f"| **all** | | | | **{us(place['sum_mean_ns'])}** (least {us(place['sum_min_ns'])}) |",
        "",
        "## Sampling from outside",
        "",
        *draw_sampling(whole, found.get("sampling")),
        "## The agent's thread",
        "",
        "CPU time over wall time, in the training process: "
        + "; ".join(
            f"{p['sampler_ratio']:.2%} until second {p['until_s']:.0f} ({p['samples']} samples of its own)"
            for p in whole["parts"]
        )
        + ".",
        "",
        "| part | runs | CPU time a run | of wall time |",
        "|---|---|---|---|",
    ]
    for name, row in sorted(whole["jobs"].items(), key=lambda item: -item[1]["ns"]):
        lines.append(f"| {name} | {row['runs']} | {us(row['ns'] / row['runs'])} | {row['share_ratio']:.3%} |")
    lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what hotloop costs a training.")
    parser.add_argument("--with-traceml", action="store_true", help=f"also measure {TRACEML} (installs it once)")
    parser.add_argument("--quick", action="store_true", help="a trial of this script, with too few repetitions")
    parser.add_argument(
        "--resume", action="store_true", help="keep the parts of a pass at this commit that was cut off"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    python = sys.executable
    started_s = time.monotonic()
    traceml: list[str] | str = "not asked for: --with-traceml"
    if options.with_traceml:
        traceml = install_traceml(python)

    def note(text: str) -> None:
        print(f"{time.monotonic() - started_s:5.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="hotloop-overhead-") as folder:
        bench = Bench(Path(folder), python)
        parts: list[tuple[str, Callable[[Result], Result]]] = [
            ("hooks", lambda found: measure_hooks(bench, options.quick)),
            ("place", lambda found: measure_in_place(bench, options.quick)),
            ("blocks", lambda found: compare_blocks(bench, options.quick)),
            ("sampling", lambda found: compare_sampling(bench, options.quick)),
            ("processes", lambda found: compare_processes(bench, options.quick, traceml)),
            ("whole_run", lambda found: measure_whole_run(bench, found["blocks"]["mlp"], options.quick)),
            ("start", lambda found: measure_start(python, options.quick)),
        ]
        found: Result = {"schema": "hotloop.overhead/1", "date": datetime.date.today().isoformat(), "pieces": 1}
        found["quick"] = options.quick
        found["commit"] = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        load = os.getloadavg()[0]
        kept = options.out.with_name(".overhead-kept.json")
        before = json.loads(kept.read_text()) if options.resume and kept.exists() else {}
        if all(before.get(key) == found[key] for key in ("commit", "quick")):
            found = before | {"pieces": before["pieces"] + 1}
        for name, measure in parts:
            if name not in found:
                note(name)
                found[name] = measure(found)
                kept.write_text(json.dumps(found))
        kept.unlink()
    found["machine"] = describe_machine(python, found["hooks"]["torch"])
    found["machine"] |= {"load_before": load, "load_after": os.getloadavg()[0]}
    found["duration_s"] = round(time.monotonic() - started_s)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(draw_raw({**found, "commit": describe_commit()}))
    options.table.write_text(draw_table(found))
    note(f"done: {options.out}, {options.table}")
    verdicts = {"MLP": found["processes"]["hotloop"]["verdict"], "201 modules": found["blocks"]["deep"]["verdict"]}
    verdicts["whole run"] = found["whole_run"]["verdict"]
    verdicts["memory"] = verdict(found["processes"]["memory"]["met"])
    verdicts |= {key: verdict(found["start"][f"{key}_met"]) for key in ("import", "help")}
    missed = [f"{name} ({said})" for name, said in verdicts.items() if said != "met"]
    print(f"limits not met: {', '.join(missed)}" if missed else "every limit met")
    return 0


if __name__ == "__main__":
    sys.exit(main())
