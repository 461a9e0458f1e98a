"""Do hotloop's lines name the function where cProfile says the time goes? -> benchmarks/results/sampled_lines.json.

Five scripts under benchmarks/sampled_lines spend one phase in Python. Each is run once under cProfile and ``--runs``
times under ``hotloop run``; a run is a hit when the lines of that phase lie most often in the function of the script
with the most own time there. Own time counts what the function calls in libraries and built-ins, as hotloop's lines do.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import datetime
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from raw import describe_commit

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "benchmarks" / "sampled_lines"
RESULT = ROOT / "benchmarks" / "results" / "sampled_lines.json"
PHASES = {
    "augment_images": "input_wait",
    "tokenize_in_loop": "other",
    "clip_by_hand": "other",
    "slow_collate": "input_wait",
    "log_json": "other",
}
"""Where each script does its Python work."""
_ELSEWHERE = {"_call_impl", "_engine_run_backward", "step"}
"""Library functions under which a function belongs to another phase than ``other``."""

Key = tuple[str, int, str]


def function_at(tree: ast.AST, line: int) -> str:
    """The innermost function or method that holds a line; comprehensions belong to it."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(found, key=lambda node: node.lineno).name if found else "<module>"


def own_times(script: Path) -> dict[str, float]:
    """Own time in s of each function of the script in the phase that it is about, from cProfile."""
    profile = cProfile.Profile(builtins=False)
    text = script.read_text()
    code = compile(text, str(script), "exec")
    names = {"__name__": "__main__"}
    profile.runctx(code, names, names)
    stats: dict[Key, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    tree = ast.parse(text)
    is_own = {key: key[0] == str(script) for key in stats}
    calls: dict[Key, dict[Key, float]] = {}
    for key, (*_, callers) in stats.items():
        for caller, (*_, cumulative_s) in callers.items():
            calls.setdefault(caller, {})[key] = cumulative_s

    def below(names: set[str]) -> set[Key]:
        open_keys = [key for key in stats if key[2] in names and not is_own[key]]
        found: set[Key] = set()
        while open_keys:
            key = open_keys.pop()
            if key not in found:
                found.add(key)
                open_keys += calls.get(key, {})
        return found

    inputs = below({"__next__"})
    chosen = inputs if PHASES[script.stem] == "input_wait" else stats.keys() - inputs - below(_ELSEWHERE)
    times: dict[str, float] = {}
    for key in chosen:
        name = function_at(tree, key[1])
        if is_own[key] and name not in ("main", "<module>"):
            libraries_s = sum(s for callee, s in calls.get(key, {}).items() if not is_own[callee])
            times[name] = times.get(name, 0.0) + stats[key][2] + libraries_s
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def first_lines(script: Path, command: list[str], folder: Path) -> dict[str, Any]:
    """The function that most samples of the phase lie in, in one run under hotloop, and how many samples there are."""
    out = folder / "report.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOTLOOP_")}
    subprocess.run(
        [*command, "run", "--no-probe", "-q", "--json", str(out), "--", sys.executable, str(script)],
        env=environment | {"OMP_NUM_THREADS": "1"},
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=300,
    )
    report = json.loads(out.read_text())
    tree = ast.parse(script.read_text())
    lines = [line for line in report["lines"] if line["phase"] == PHASES[script.stem]]
    shares: dict[str, float] = {}
    for line in lines:
        name = function_at(tree, line["line"])
        shares[name] = shares.get(name, 0.0) + line["share_ratio"]
    best = max(shares, key=shares.__getitem__, default=None)
    overhead, step = report["overhead"], report["step"]
    return {
        "function": best,
        "share_ratio": best and round(shares[best], 3),
        "samples": sum(line["samples"] for line in lines),
        "sampler_ratio": round(overhead["sampler_ns"] / (step["mean_ns"] * step["count"]), 5),
        "inside": any("inside the training process" in health["message"] for health in report["health"]),
    }


def write_results(path: Path, found: dict[str, Any]) -> None:
    found |= {
        "commit": describe_commit(),
        "machine": {"cores": len(os.sched_getaffinity(0)), "torch": metadata.version("torch")},
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
    }
    rows = ",\n".join(f"  {json.dumps(row)}" for row in found["rows"])
    path.write_text(json.dumps({**found, "rows": []}, indent=1).replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the first function of a phase with cProfile's.")
    parser.add_argument(
        "--hotloop", default=str(Path(sys.executable).with_name("hotloop")), help="the hotloop to judge"
    )
    parser.add_argument("--label", default="outside", help="under which name the rows are kept")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {"schema": "hotloop.sampled-lines/1"}
    rows = [row for row in found.get("rows", []) if row["label"] != options.label]
    own = found.setdefault("own_times", {})
    for name in PHASES:
        script = SCRIPTS / f"{name}.py"
        truth = own[name] = own.get(name) or {key: round(s, 2) for key, s in own_times(script).items()}
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="hotloop-lines-") as folder:
                row = first_lines(script, [options.hotloop], Path(folder))
            top, second = [*truth.items(), ("", 0.0)][:2]
            rows.append(
                {
                    "label": options.label,
                    "script": name,
                    "cprofile": top[0],
                    "cprofile_s": round(top[1], 2),
                    "cprofile_second": second[0],
                    "cprofile_second_s": round(second[1], 2),
                    **row,
                    "hit": row["function"] == top[0],
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            write_results(options.out, found | {"rows": rows})
    hits = sum(row["hit"] for row in rows if row["label"] == options.label)
    print(f"{options.label}: {hits} of {len(PHASES) * options.runs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
