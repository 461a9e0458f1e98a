"""How near `hotloop plan` comes to published speeds: docs/plan-accuracy.md.

Fits the constants of src/hotloop/ahead/plan/efficiency.toml, fits them again without each family and kind of device,
and predicts every row. `make plan-accuracy` runs it: about half a minute on one core, no GPU.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import passes
from plan_fit import ALIKE, FILE, Constants, draw, fit, kind_of, pick_rows, residuals, unique
from published_rows import A100_80, FOLDER, H100, H200, Row, read_rows

from hotloop.ahead.plan.search import search
from hotloop.ahead.plan.time import predict_step
from hotloop.core.link_fit import LinkFit, bus_factor
from hotloop.core.workload import DecoderShape, PlannedRun, Workload

RESULT = passes.RESULTS / "plan" / "time.json"
HELD_OUT = ("llm-foundry", "llm-foundry fp8")
"""Sources of several families, each of which is predicted by constants that were fitted without it."""
QUANTILE = 0.85
LEAST_ROWS = 8
MET = {True: "yes", False: "**no**", None: ""}
FRAMEWORKS = ("torch", "megatron")
SOURCES = {
    "llm-foundry": "mosaicml/llm-foundry@8c8dd48 scripts/train/benchmarking/README.md; MPT with FSDP, judged by MFU",
    "llm-foundry fp8": "the same page as llm-foundry, 8-bit matrix products",
    "korthikanti": "Korthikanti et al., arXiv:2205.05198, Table 5 (as in calculon@caa4b11)",
    "narayanan": "Narayanan et al., arXiv:2104.04473, Table 1; a micro-batch of 1 is assumed, because none is stated",
    "vtrain multi-node": "VIA-Research/vTrain@f8dda84 data/ground_truth_multi.csv",
    "vtrain single-node": "VIA-Research/vTrain@f8dda84 data/ground_truth_single.csv",
    "bloom": "bigscience@9e64eda, tr11-176B-ml/chronicles-prequel.md; blank layers and heads are derived from the size",
    "simumax b200": "SimuMax@4dcaae5, Llama3-70B with 12 layers on 8 B200",
    "simumax b200 deepseek-v3": "SimuMax@4dcaae5, DeepSeek-V3 with 4 layers, latent attention, and experts on 8 B200",
    "simumax a100-80g-pcie": "SimuMax@4dcaae5, Llama3-70B with 12 layers on 8 A100 PCIe, read from a chart",
    "internevo": "InternLM/InternEvo@c628a8c doc/en/train_performance.md",
    "fms-fsdp": "foundation-model-stack/fms-fsdp@5a296af README.md",
    "torchtitan": "pytorch/torchtitan and torchao, measured with torchtitan; its selective recomputation repeats more",
    "nemo": "NVIDIA/NeMo@9c5c5e9 performance pages, FP8 on H100; a blank micro-batch counts as 1",
    "megatron-bridge": "NVIDIA-NeMo/Megatron-Bridge@067f987 docs/performance-summary, dense models",
    "nanoGPT": "karpathy/nanoGPT@3adf61e README.md L209; unfused attention, as in that version",
    "llm.c": "karpathy/llm.c@f1e2ace scripts/run_gpt2_350M.sh; the author's approximate figures",
}


def main() -> int:
    read, skipped = read_rows()
    rows = unique(read)
    fitted = pick_rows(rows)
    constants = fit(fitted)
    made = predict_rows(rows, fitted, constants)
    others = predict_other_devices(rows, fitted)
    errors = find_errors(made, others)
    FILE.write_text(draw(constants, fitted, errors), encoding="utf-8")
    content = {
        "date": date.today().isoformat(),
        "machine": passes.describe_place(passes.describe_machine()),
        "commit": passes.describe_commit(),
        "constants": constants,
        "errors": errors,
        "all_reduce": fit_all_reduce(),
        "reported": report_runs(),
        "search": measure_search(),
        "scaling": compare_scaling(made),
        "other_devices": others,
        "skipped": [{"source": one.source, "metric": one.metric, "why": one.why} for one in skipped],
        "rows": made,
    }
    RESULT.write_text(passes.draw_raw(content), encoding="utf-8")
    print("\n".join(draw_goals(content)))
    return 0


def predict_rows(rows: Sequence[Row], fitted: Sequence[Row], constants: Constants) -> list[dict[str, Any]]:
    """Every row: time predicted over published, and whether the row was fitted in that prediction."""
    ratios = [math.exp(x) for x in residuals(rows, constants)]
    in_fit = {row.key for row in fitted}
    is_fitted = [row.key in in_fit for row in rows]
    for family in {row.family for row in rows if row.group in HELD_OUT}:
        theirs = [k for k, row in enumerate(rows) if row.family == family and row.group in HELD_OUT]
        without = fit([row for row in fitted if not (row.family == family and row.group in HELD_OUT)])
        for k, x in zip(theirs, residuals([rows[k] for k in theirs], without), strict=True):
            ratios[k], is_fitted[k] = math.exp(x), False
    return [_describe(row, ratio, known) for row, ratio, known in zip(rows, ratios, is_fitted, strict=True)]


def _describe(row: Row, ratio: float, is_fitted: bool) -> dict[str, Any]:
    run, model = row.workload.run, row.workload.model
    return {
        "group": row.group,
        "family": row.family,
        "device": row.hardware.name,
        "kind": kind_of(row),
        "framework": run.framework,
        "gpus": row.workload.gpus,
        "run": f"tp {run.tp} pp {run.pp} cp {run.cp} b {run.micro_batch}/{run.global_batch} s {model.seq}",
        "how": f"{run.precision} {run.sharding}, recompute {run.recompute}{', compiled' if run.compiled else ''}",
        "seq": model.seq,
        "recompute": run.recompute,
        "metric": row.metric,
        "unit": row.unit.split(" (")[0][:20],
        "published": row.value,
        "predicted": row.value * (ratio if row.metric == "iteration_time" else 1 / ratio),
        "time_ratio": ratio,
        "fitted": is_fitted,
        "where": row.source[-40:],
    }


def predict_other_devices(rows: Sequence[Row], fitted: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Each kind of device as if no row of it were known."""
    found = {}
    for kind in dict.fromkeys(ALIKE.values()):
        theirs = [row for row in rows if kind_of(row) == kind]
        without = fit([row for row in fitted if kind_of(row) != kind])
        found[kind] = [
            {"group": row.group, "framework": row.workload.run.framework, "time_ratio": math.exp(x)}
            for row, x in zip(theirs, residuals(theirs, without), strict=True)
        ]
    return found


def find_errors(
    made: Sequence[Mapping[str, Any]], others: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, float]]:
    """Half-widths of the stated range by kind of device and framework, from rows that were not fitted."""
    everything = [row for rows in others.values() for row in rows]
    errors = {"other": {name: half_width(_of(everything, name)) for name in FRAMEWORKS}}
    for kind in dict.fromkeys(ALIKE.values()):
        for framework in FRAMEWORKS:
            theirs = [row for row in made if row["kind"] == kind and not row["fitted"]]
            if len(_of(theirs, framework)) >= LEAST_ROWS:
                errors.setdefault(kind, {})[framework] = half_width(_of(theirs, framework))
    for word, kind in ALIKE.items():
        if kind in errors:
            errors[word] = errors[kind]
    return errors


def _of(rows: Iterable[Mapping[str, Any]], framework: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["framework"] == framework]


def half_width(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of the range mid / (1 + e) .. mid (1 + e) that holds at least QUANTILE of these, all sources counting alike."""
    sizes = Counter(row["group"] for row in rows)
    errors = sorted((abs(math.log(row["time_ratio"])), 1 / sizes[row["group"]] / len(sizes)) for row in rows)
    held = 0.0
    for error, weight in errors:
        held += weight
        if held >= QUANTILE - 1e-9:
            return math.ceil((math.exp(error) - 1) * 100) / 100
    raise ValueError("no rows")


def fit_line(points: Sequence[tuple[float, float]]) -> LinkFit:
    """The line through (wire bytes, ns) by relative least squares, so that small messages count as much as large ones.

    Raises ValueError where fewer than two sizes are given or the larger take no longer.
    """
    # Minimum of the sum of (a/t + b x/t - 1)^2.
    p = [(1 / t, x / t) for x, t in points if t > 0]
    uu, uv, vv = sum(u * u for u, _ in p), sum(u * v for u, v in p), sum(v * v for _, v in p)
    u1, v1 = sum(u for u, _ in p), sum(v for _, v in p)
    scale = uu * vv - uv * uv
    if len({x for x, _ in points}) < 2 or scale <= 0 or (slope := (uu * v1 - uv * u1) / scale) <= 0:
        raise ValueError("a link needs times of two or more sizes, of which the larger takes longer")
    latency = max(0.0, (vv * u1 - uv * v1) / scale)
    return LinkFit(latency_ns=latency, bytes_per_s=1e9 / slope)


def fit_all_reduce() -> list[dict[str, float]]:
    """All-reduce on A100 by NVLink: each line fitted on every eighth size, reported on all others."""
    points: dict[int, list[tuple[float, float]]] = defaultdict(list)
    with (FOLDER / "a100_nvlink_all_reduce.tsv").open(encoding="utf-8") as file:
        for cells in csv.DictReader(file, delimiter="\t"):
            gpus = int(cells["gpus"])
            wire_bytes = float(cells["bytes"]) * bus_factor("all-reduce", gpus)
            points[gpus].append((wire_bytes, float(cells["time_ns"])))
    found = []
    for gpus, theirs in sorted(points.items()):
        line = fit_line(theirs[::8])
        left = [abs(line.time_ns(x) / t - 1) for k, (x, t) in enumerate(theirs) if k % 8]
        found.append(
            {
                "gpus": gpus,
                "latency_ns": line.latency_ns,
                "bytes_per_s": line.bytes_per_s,
                "mape": sum(left) / len(left),
                "n": len(left),
            }
        )
    return found


def report_runs() -> dict[str, float]:
    """A run that was bought, and a usual guide's scaling claim; neither is fitted."""
    gpt = DecoderShape(layers=24, hidden=1024, heads=16, vocab=50257, seq=1024, bias=True, learned_positions=True)
    run = PlannedRun(
        micro_batch=32, global_batch=512, precision="pure-bf16", sharding="zero1", compiled=True, fused_loss=True
    )
    bought = Workload(model=gpt, run=run, gpus=8)
    step = predict_step(bought, A100_80)
    hours = 30e9 / bought.tokens_per_step * step.mid_ns / 3.6e12
    small = DecoderShape(layers=24, hidden=2048, heads=16, vocab=50368, seq=2048, bias=True, learned_positions=True)
    run = PlannedRun(micro_batch=8, global_batch=64, sharding="fsdp")
    few, many = (
        predict_step(Workload(model=small, run=replace(run, global_batch=8 * gpus), gpus=gpus), A100_80)
        for gpus in (8, 32)
    )
    return {
        "llmc_step_ms": step.mid_ns / 1e6,
        "llmc_hours": hours,
        "llmc_usd": hours * 14,
        "claim_tokens_8": 8 * few.tokens_per_s_per_gpu,
        "claim_tokens_32": 32 * many.tokens_per_s_per_gpu,
        "claim_efficiency": many.tokens_per_s_per_gpu / few.tokens_per_s_per_gpu,
    }


def measure_search() -> dict[str, float]:
    """Llama 3 70B on A100, H100 and H200, 8 to 16,384 of them: how many configurations a second."""
    model = DecoderShape(
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256, seq=8192, is_gated=True, tied=False
    )
    workload = Workload(model=model, run=PlannedRun(micro_batch=1, global_batch=16_384), gpus=8)
    counts = [2**power for power in range(3, 15)]
    start = time.perf_counter()
    found = search(workload, [A100_80, H100, H200], tokens=10**12, gpu_counts=counts)
    return {"configurations": found.tried, "fitting": found.fitting, "seconds": time.perf_counter() - start}


def compare_scaling(made: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tokens a second a device at most GPUs over those at fewest, of one model, device and way to run."""
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in made:
        if row["group"] == "llm-foundry":
            alike[row["family"], row["device"], row["seq"], row["how"]].append(row)
    found = []
    for (family, device, *_), rows in alike.items():
        ordered = sorted(rows, key=lambda row: row["gpus"])
        first = ordered[0]
        for row in ordered[1:]:
            if row["gpus"] == first["gpus"] or not 0.6 <= _batch(row) / _batch(first) <= 1.67:
                continue
            published = row["published"] / first["published"] * 100
            predicted = row["predicted"] / first["predicted"] * 100
            found.append(
                {
                    "model": family,
                    "device": device,
                    "from": first["gpus"],
                    "to": row["gpus"],
                    "published": published,
                    "predicted": predicted,
                    "points": predicted - published,
                }
            )
    return found


def _batch(row: Mapping[str, Any]) -> int:
    return int(row["run"].split(" b ")[1].split("/")[0])


def mape(rows: Iterable[Mapping[str, Any]]) -> float:
    """Of what the page printed: its own unit, predicted against published."""
    errors = [abs(row["predicted"] / row["published"] - 1) for row in rows]
    return sum(errors) / len(errors)


def percentile(rows: Iterable[Mapping[str, Any]], share: float) -> float:
    errors = sorted(abs(row["predicted"] / row["published"] - 1) for row in rows)
    return errors[math.ceil(share * len(errors)) - 1]


def half_width_of(row: Mapping[str, Any], errors: Mapping[str, Mapping[str, float]]) -> float:
    return errors.get(row["kind"], {}).get(row["framework"], errors["other"][row["framework"]])


def covered(row: Mapping[str, Any], width: float) -> bool:
    return abs(math.log(row["time_ratio"])) <= math.log(1 + width)


def coverage_of_unseen_sources(rows: Sequence[Mapping[str, Any]], errors: Mapping[str, Mapping[str, float]]) -> float:
    """Each source inside the range that the other sources of its kind of device and framework set."""
    inside = 0
    for group in {row["group"] for row in rows}:
        theirs = [row for row in rows if row["group"] == group]
        for row in theirs:
            alike = [
                one
                for one in rows
                if one["group"] != group and (one["kind"], one["framework"]) == (row["kind"], row["framework"])
            ]
            width = half_width(alike) if len(alike) >= LEAST_ROWS else errors["other"][row["framework"]]
            inside += covered(row, width)
    return inside / len(rows)


def draw_goals(content: Mapping[str, Any]) -> list[str]:
    """The table of what was aimed at and reached."""
    rows = content["rows"]
    left = [row for row in rows if not row["fitted"]]
    by_group = defaultdict(list)
    for row in left:
        by_group[row["group"]].append(row)
    foundry = by_group["llm-foundry"]
    errors = content["errors"]
    inside = sum(covered(row, half_width_of(row, errors)) for row in left) / len(left)
    widths = sorted(half_width_of(row, errors) for row in left)
    points = [abs(row["points"]) for row in content["scaling"]]
    seen = coverage_of_unseen_sources(left, errors)
    foundry_mape, foundry_p90 = mape(foundry), percentile(foundry, 0.9)
    megatron = [*by_group["korthikanti"], *by_group["narayanan"]]
    simumax = [row for group, theirs in by_group.items() if group.startswith("simumax") for row in theirs]
    reduce_n = sum(row["n"] for row in content["all_reduce"])
    reduce_mape = sum(row["mape"] * row["n"] for row in content["all_reduce"]) / reduce_n
    near = sum(point <= 4 for point in points)
    searched = content["search"]

    def line(what: str, goal: str, figure: str, met: bool | None, n: int) -> str:
        return f"| {what} | {goal} | {figure} | {MET[met]} | {n} |"

    korthikanti = by_group["korthikanti"]
    return [
        "| what | goal | reached | met | n |",
        "|---|---|---|---|---|",
        line("MAPE of llm-foundry MFU, each family held out", "<= 6%", f"{foundry_mape:.1%}", foundry_mape <= 0.06,
             len(foundry)),
        line("90th percentile of llm-foundry MFU errors", "<= 12%", f"{foundry_p90:.1%}", foundry_p90 <= 0.12,
             len(foundry)),
        line("scaling efficiencies within 4 points", "all", f"{near} of {len(points)}", near == len(points),
             len(points)),
        line("mean difference of scaling efficiencies", "", f"{sum(points) / len(points):.1f} points", None,
             len(points)),
        line("MAPE of Korthikanti iteration times, not fitted", "<= 6%", f"{mape(korthikanti):.1%}",
             mape(korthikanti) <= 0.06, len(korthikanti)),
        line("MAPE of Korthikanti's and Narayanan's rows, not fitted", "<= 6%", f"{mape(megatron):.1%}",
             mape(megatron) <= 0.06, len(megatron)),
        line("MAPE of SimuMax times, not fitted", "<= 8%", f"{mape(simumax):.1%}", mape(simumax) <= 0.08, len(simumax)),
        line("MAPE of SimuMax times for Llama3-70B on B200", "<= 8%", f"{mape(by_group['simumax b200']):.1%}",
             mape(by_group["simumax b200"]) <= 0.08, len(by_group["simumax b200"])),
        line("MAPE of vTrain multi-node times, not fitted", "<= 12%", f"{mape(by_group['vtrain multi-node']):.1%}",
             mape(by_group["vtrain multi-node"]) <= 0.12, len(by_group["vtrain multi-node"])),
        line("MAPE of A100 all-reduce times, calibrated on an eighth of the sizes", "<= 3%", f"{reduce_mape:.1%}",
             reduce_mape <= 0.03, reduce_n),
        line("rows inside the stated range, not fitted", ">= 80%", f"{inside:.0%}", inside >= 0.8, len(left)),
        line("rows inside the range that the other sources determine", "", f"{seen:.0%}", seen >= 0.8, len(left)),
        line("median half-width of the range", "", f"{widths[len(widths) // 2]:.0%}", None, len(left)),
        line(f"search over {searched['configurations']} configurations: three kinds of GPUs, 8 to 16,384 each",
             "<= 10 s", f"{searched['seconds']:.1f} s", searched["seconds"] <= 10, 1),
    ]  # fmt: skip


def draw_page(content: Mapping[str, Any]) -> str:
    """docs/plan-accuracy.md from the results."""
    lines = [
        "# Accuracy of `hotloop plan`: time",
        "",
        "This page compares predicted training speeds with published training speeds. `make plan-accuracy` draws",
        "the page from the rows in `benchmarks/published`. `benchmarks/plan_fit.py` fitted the constants in",
        "`src/hotloop/ahead/plan/efficiency.toml` to a few of these rows; the tables below mark the fitted rows.",
        "Each llm-foundry row is predicted using constants that were fitted without the row's model family. For the",
        "other sources, only rows that were not fitted count. Errors refer to the unit that the source uses. The",
        "table of goals includes the missed goals.",
        "",
        f"The predictions were computed on {content['date']} at commit {content['commit']} ({content['machine']}).",
        "",
        "## Goals",
        "",
        *draw_goals(content),
        "",
        *_draw_sources(content),
        *_draw_devices(content),
        *_draw_reported(content),
        *_draw_scaling(content),
        *_draw_skipped(content),
        "## Every row",
        "",
        "The time ratio is the predicted time divided by the published time. In the *run* column, *b* is the",
        "micro-batch size and the global batch size in sequences, and *s* is the number of tokens per sequence.",
        "",
    ]
    for group in dict.fromkeys(row["group"] for row in content["rows"]):
        lines += [f"### {group}", "", "| model | device | GPUs | run | published | predicted | time ratio | fitted |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [
            f"| {row['family']} | {row['device']} | {row['gpus']} | {row['run']}, {row['how']} | "
            f"{row['published']:.4g} {row['unit']} | {row['predicted']:.4g} | {row['time_ratio']:.2f} | "
            f"{'yes' if row['fitted'] else 'no'} |"
            for row in content["rows"]
            if row["group"] == group
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _draw_sources(content: Mapping[str, Any]) -> list[str]:
    lines = ["## By source", "", "| source | n, not fitted | MAPE | 90th percentile | mean ratio | fitted rows |"]
    lines.append("|---|---|---|---|---|---|")
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in content["rows"]:
        groups[row["group"]].append(row)
    for group, rows in groups.items():
        left = [row for row in rows if not row["fitted"]]
        mean = math.exp(sum(math.log(row["time_ratio"]) for row in left) / len(left)) if left else math.nan
        found = f"{mape(left):.1%} | {percentile(left, 0.9):.1%} | {mean:.2f}" if left else "| |"
        lines.append(f"| {group}: {SOURCES[group]} | {len(left)} | {found} | {len(rows) - len(left)} |")
    families = defaultdict(list)
    for row in content["rows"]:
        if row["group"] == "llm-foundry":
            families[row["family"], row["device"]].append(row)
    lines += [
        "",
        "The next table shows llm-foundry by model family. Each family is predicted using constants that exclude it.",
        "",
        "| family | device | n | MAPE | worst |",
    ]
    lines.append("|---|---|---|---|---|")
    lines += [
        f"| {family} | {device} | {len(rows)} | {mape(rows):.1%} | {percentile(rows, 1):.1%} |"
        for (family, device), rows in sorted(families.items())
    ]
    return [*lines, ""]


def _draw_devices(content: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Devices without rows",
        "",
        "Here, each kind of device is predicted as if none of its rows were known. These errors determine the range",
        "that hotloop states for devices without published rows.",
        "",
        "| kind | framework | n | MAPE of time | mean ratio | stated half-width with rows |",
        "|---|---|---|---|---|---|",
    ]
    for kind, rows in content["other_devices"].items():
        for framework in FRAMEWORKS:
            ratios = [row["time_ratio"] for row in _of(rows, framework)]
            if not ratios:
                continue
            errors = sum(abs(ratio - 1) for ratio in ratios) / len(ratios)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            width = content["errors"].get(kind, {}).get(framework)
            stated = "as other devices" if width is None else f"{width:.0%}"
            lines.append(f"| {kind} | {framework} | {len(ratios)} | {errors:.1%} | {mean:.2f} | {stated} |")
    other = content["errors"]["other"]
    lines += [
        "",
        f"For other devices, the half-width is {other['torch']:.0%} with torch and "
        f"{other['megatron']:.0%} with Megatron.",
        "",
    ]
    return lines


def _draw_reported(content: Mapping[str, Any]) -> list[str]:
    runs = content["reported"]
    return [
        "## Reported, not fitted",
        "",
        "* llm.c trained GPT-2 350M on 8 A100 GPUs with 30e9 tokens at 14 USD an hour. hotloop predicts a step time of "
        f"{runs['llmc_step_ms']:.0f} ms (the author reports 820 ms), {runs['llmc_hours']:.1f} hours (13.7 hours), and "
        f"{runs['llmc_usd']:.0f} USD (200 USD), assuming a micro-batch of 32.",
        '* A guide states "8 GPUs 100K tokens/s, 32 GPUs 380K", a scaling efficiency of 95%. For a model with 1.3e9 '
        f"parameters and FSDP on A100 80 GB GPUs, hotloop predicts {runs['claim_tokens_8'] / 1e3:.0f}K and "
        f"{runs['claim_tokens_32'] / 1e3:.0f}K tokens/s, a scaling efficiency of {runs['claim_efficiency']:.1%}.",
        "",
        "| all-reduce, A100 NVLink | latency | rate | MAPE, not fitted | n |",
        "|---|---|---|---|---|",
        *(
            f"| {row['gpus']} GPUs | {row['latency_ns'] / 1e3:.0f} us | {row['bytes_per_s'] / 1e9:.0f} GB/s | "
            f"{row['mape']:.1%} | {row['n']} |"
            for row in content["all_reduce"]
        ),
        "",
    ]


def _draw_scaling(content: Mapping[str, Any]) -> list[str]:
    return [
        "## Scaling efficiency",
        "",
        "For each llm-foundry model, the table shows the MFU at the larger number of GPUs divided by the MFU at the",
        "smallest number of GPUs. The micro-batch sizes differ by at most a factor of 1.67.",
        "",
        "| model | device | GPUs | published | predicted | points |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['device']} | {row['from']} to {row['to']} | {row['published']:.1f}% | "
            f"{row['predicted']:.1f}% | {row['points']:+.1f} |"
            for row in content["scaling"]
        ),
        "",
    ]


def _draw_skipped(content: Mapping[str, Any]) -> list[str]:
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in content["skipped"]:
        reasons[one["why"]].append(one["source"])
    lines = ["## Rows left out", "", "| reason | rows | sources |", "|---|---|---|"]
    for why, sources in sorted(reasons.items(), key=lambda item: -len(item[1])):
        named = ", ".join(dict.fromkeys(source.split(" ")[0] for source in sources))
        lines.append(f"| {why[:110]} | {len(sources)} | {named[:180]} |")
    suspect = ", ".join(
        dict.fromkeys(s.split(".md ")[-1] for s in reasons.get("suspect: contradicts its own page", []))
    )
    return [*lines, "", f"The suspect rows are on these lines of the chronicles: {suspect}.", ""]


if __name__ == "__main__":
    sys.exit(main())
