"""The choice of how to send gradients, forecast and measured, at three rates of a link -> results/link_choice/.

    python benchmarks/link_choice.py costs                      CPU time of each way of sending, and of plain DDP's
    python benchmarks/link_choice.py rate --rate 100mbit        every way side by side on a link of this rate

`rate` needs root: two network namespaces (tests/zoo/shaped_link.py). It first measures the link as `hotloop bench comm`
does, makes the choice from that, and then trains a 25 million parameter transformer by every way in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from passes import ROOT, describe_commit, describe_machine, describe_place, draw_raw

sys.path.insert(0, str(ROOT / "tests" / "zoo"))
from shaped_link import shaped_link

from hotloop.core.link_choice import SAFE_WAYS, Exchange, choose_way
from hotloop.core.link_fit import LinkFit, format_byte_rate
from hotloop.measure.bench.collective_times import SIZES, fit_collectives

RANKS = ROOT / "benchmarks" / "link_choice_ranks.py"
PROBE = ROOT / "src" / "hotloop" / "measure" / "probe" / "start.py"
RESULTS = ROOT / "benchmarks" / "results" / "link_choice"
RATES = ("none", "1gbit", "100mbit")
PASSES = {
    "none": "No limit",
    "1gbit": "1 Gbit/s",
    "100mbit": "100 Mbit/s",
    "none-first": "No limit, first pass",
    "1gbit-first": "1 Gbit/s, first pass",
    "100mbit-first": "100 Mbit/s, first pass",
    "100mbit-second": "100 Mbit/s, second pass",
}
HEAD = """\
# The choice by link, forecast and measured

This page shows how `core/link_choice.py` would send the gradients of a 25-million-parameter transformer between two
gloo ranks, and how long a step took with each compression method. Each step used a batch of 1 x 128 tokens, SGD, and
one thread per rank. All methods ran alternately on the same link, whose rate was limited
(`python benchmarks/link_choice.py rate --rate 100mbit`). The step time is the shortest step of each method.

The forecast uses the link that `hotloop bench comm` measured just before the run, the step time without an exchange,
and the compression cost below. A choice is right if its step takes at most 10% longer than the fastest of the methods
that hotloop may choose: none, 16 bits, and 8 bits. These methods did not worsen the loss of a small language model
([communication-quality.md](communication-quality.md)). The first passes ran before top-k became cheaper and did not
include int8; their forecasts use the current costs. `scripts/evidence.py` draws this page from
`benchmarks/results/link_choice`.
"""
SENDER = "compress-gradients"
GONE = ("local-updates", "powersgd")
"""Ways that were measured, but are no longer offered."""
BUSY_LOAD = 1.0
"""Processes that want a core in addition to the benchmark; from this number on, its page calls the cores busy."""
WITHIN_RATIO = 0.1
"""A choice is right where it takes at most this much longer than the quickest of SAFE_WAYS that was measured."""


def measure_link(link: Any, budget_s: float) -> dict[str, Any]:
    """Rank 0's answer of the probe of ``hotloop bench comm``."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "in.json"
        request = {"budget_s": budget_s, "collectives": ["all-reduce"], "sizes": SIZES, "backend": "gloo"}
        given.write_text(json.dumps(request))
        # Each rank writes its own answer; rank 0's is the one with the times.
        script = f"exec {sys.executable} {PROBE} link_times {given} {folder}/out-$RANK.json"
        run = link.run(["sh", "-c", script], timeout_s=300)
        if run.return_codes != (0, 0):
            raise SystemExit("\n".join(run.outputs))
        found: dict[str, Any] = json.loads((Path(folder) / "out-0.json").read_text())
    return found


def measure_rate(rate: str, rounds: int) -> dict[str, Any]:
    """The link's fit, the choice from it, and the time per step by every way."""
    with tempfile.TemporaryDirectory() as folder, shaped_link(rate) as link:
        fit = fit_collectives(measure_link(link, 20.0))["all-reduce"]
        if fit is None:
            raise SystemExit("the link was measured at too few sizes")
        out = Path(folder) / "found.json"
        command = [sys.executable, str(RANKS), "steps", str(rounds), str(out)]
        variables = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        run = link.run(command, timeout_s=3000, environment=variables)
        if run.return_codes != (0, 0):
            raise SystemExit("\n".join(run.outputs))
        found: dict[str, Any] = json.loads(out.read_text())
    link_found = {"latency_ns": fit.latency_ns, "bytes_per_s": fit.bytes_per_s, "error_ratio": fit.error_ratio}
    return {"rate": rate, "rounds": rounds, "link": link_found, **found}


def judge_rate(found: dict[str, Any]) -> dict[str, Any]:
    """Forecast and measurement of every way, the choice, and whether it was right. Steps: the least of each way."""
    fit = LinkFit(**found["link"])
    steps = {way: _least(found["rows"], way) for way in dict.fromkeys(row["way"] for row in found["rows"])}
    alone_ns = steps["no exchange"]
    exchange = Exchange(
        bucket_bytes=found["bucket_bytes"],
        backward_ns=found["backward_ratio"] * alone_ns,
        step_ns=steps["none"],
        ranks=2,
    )
    choice = choose_way(exchange, fit, [SENDER])
    ways = [
        {
            "way": one.way,
            "forecast_step_ns": round(alone_ns + one.exposed_ns),
            "step_ns": round(steps[one.way]),
            "speedup_forecast": (alone_ns + choice.now.exposed_ns) / (alone_ns + one.exposed_ns),
            "speedup": steps["none"] / steps[one.way],
        }
        for one in choice.ways
        if one.way in steps
    ]
    safe = [row for row in ways if row["way"] in SAFE_WAYS]
    best = min(row["step_ns"] for row in safe)
    picked = steps.get(choice.picked.way)
    return {
        "rate": found["rate"],
        "picked": choice.picked.way,
        "best": min(safe, key=lambda row: row["step_ns"])["way"],
        "is_right": None if picked is None else picked <= (1 + WITHIN_RATIO) * best,
        "loses": None if picked is None else picked > (1 + WITHIN_RATIO) * steps["none"],
        "ways": ways,
    }


def _least(rows: Sequence[dict[str, Any]], way: str) -> float:
    return float(min(row["step_ns"] for row in rows if row["way"] == way))


def write(name: str, load: float, content: dict[str, Any]) -> None:
    """One raw file; ``load`` is the number of processes that wanted a core just before."""
    head = {
        "commit": describe_commit(),
        "date": date.today().isoformat(),
        "machine": describe_place(describe_machine()),
        "load": round(load, 2),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(draw_raw({**head, **content}), encoding="utf-8")


def draw_page(folder: Path) -> str:
    """docs/link-choice.md from the raw files."""
    found = {rate: json.loads((folder / f"{rate}.json").read_text(encoding="utf-8")) for rate in PASSES}
    costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
    lines = [HEAD]
    commits = {one["commit"] for one in (*found.values(), costs)}
    lines.append(f"Machine: {costs['machine']}. Commits: {', '.join(sorted(commits))}.\n")
    for rate, one in found.items():
        judged = judge_rate(one)
        link = one["link"]
        verdict = {True: "right", False: "wrong", None: "not measured"}[judged["is_right"]]
        state = "**busy**" if one["load"] >= BUSY_LOAD else "quiet"
        lines += [
            f"## {PASSES[rate]}\n",
            f"Measured on {one['date']} with a load of {one['load']:.1f} on two cores ({state}). The measured link "
            f"has a rate of {format_byte_rate(link['bytes_per_s'])} and a latency of {link['latency_ns'] / 1e3:.0f} "
            f"µs. hotloop chose **{judged['picked']}**; the fastest method was {judged['best']}; the choice was "
            f"**{verdict}**.\n",
            "| method | step (forecast) | step (measured) | speedup (forecast) | speedup (measured) | n |",
            "|---|---|---|---|---|---|",
        ]
        for row in judged["ways"]:
            count = sum(step["way"] == row["way"] for step in one["rows"])
            lines.append(
                f"| {row['way']} | {row['forecast_step_ns'] / 1e6:.0f} ms | {row['step_ns'] / 1e6:.0f} ms | "
                f"{row['speedup_forecast']:.2f}x | {row['speedup']:.2f}x | {count} |"
            )
        lines.append("")
    lines += [
        "## Cost of compressing\n",
        "The cost is the CPU time that compression adds to a plain exchange of "
        f"{costs['elements'] / 1e6:.0f} million elements on one thread. Each value is the smallest of "
        f"{len(costs['times_ns_per_element']['none'])} measurements ({costs['date']}, load {costs['load']:.1f}).\n",
        "| method | ns per element |",
        "|---|---|",
        *(f"| {name} | {value:.2f} |" for name, value in costs["ns_per_element"].items() if name not in GONE),
        "",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    kinds = parser.add_subparsers(dest="part", required=True)
    kinds.add_parser("costs")
    one = kinds.add_parser("rate")
    one.add_argument("--rate", choices=RATES, required=True)
    one.add_argument("--rounds", type=int, default=10, help="steps of every way")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    if options.part == "costs":
        from link_choice_ranks import measure_costs

        write("costs", load, measure_costs())
    else:
        found = measure_rate(options.rate, options.rounds)
        write(options.rate, load, found)
        print(json.dumps(judge_rate(found), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
