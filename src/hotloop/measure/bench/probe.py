"""Facts of a recording -> what a probe of its operators shall measure; what it measured -> Forecasts of techniques."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any

from hotloop.core.analysis import Forecast
from hotloop.core.findings import Basis
from hotloop.core.measurement import StepTimes
from hotloop.measure.bench.program import BenchmarkError, run_program

BUDGET_S = 10.0
TIMEOUT_S = 30.0
FEWEST_STEPS = 5
"""A training with fewer steady steps is not probed."""
FEWEST_ROUNDS = 4
LEAST_COVERAGE_RATIO = 0.6
"""A replay that explains less of forward and backward promises nothing: the low forecast is 0."""
LEAST_LOCATED_RATIO = 0.7
"""Share of the replayed time whose batch dimension must have been found to forecast a larger batch."""
CALL_NS = 15_000.0
"""Host time around an operator that is not the operator: modules, Python, autograd's bookkeeping. A rule of thumb: 5 to
20 us were seen, but no raw data of it was kept."""
AGREES_RATIO, RESEMBLES_RATIO = 2.0, 4.0
"""The run's time of a piece over the probe's (or the other way round): up to the first the probe measured that piece,
beyond the second it says little of it. In 14 quiet runs of the zoo (commit 6782504, 2 cores) the run's optimizer took
0.9 to 2.6 times the probe's, median 1.5, and once 5.6: a step finds colder caches than a probe."""
DISTURBED_RATIO = 1.1
"""With as many threads as cores, noise may cost this much; beyond it, others used the cores during the probe."""
PAYS_RATIO = 0.02
"""A larger batch is named only where it saves this much more than a smaller one."""
FEW_ROUNDS_TRUST = 0.7
"""Range factor for low forecasts from fewer rounds than FEWEST_ROUNDS."""

# Range factors of what a probe timed: low and high end over the middle. They say how far a step may be from its probe
# and were not measured one by one. What was realised, by the fastest runs, in the known set (zoo/55f64a285295.jsonl,
# 2026-11-22) and the treated runs (treated/*.jsonl, 2026-11-21), both in benchmarks/results, over the middle forecast:
BF16_LOW_RATIO, BF16_HIGH_RATIO = 0.8, 1.15
"""0.94 (wide_lm) and 1.15 (lm-float32): n = 2, inside the range."""
CACHES_RATIO, MOST_CACHES_RATIO, LEAST_CACHES_RATIO = 1.05, 1.2, 0.95
"""How much more a larger batch grows a step than its operators alone, which miss fewer caches: expected, most, least.
0.78 (weather_gru): n = 1, inside the range."""
THREADS_LOW_RATIO, THREADS_HIGH_RATIO = 0.6, 1.3
"""1.91 (denoise_net, above the range) and 1.28 (many-threads): n = 2."""
OPTIMIZER_LOW_RATIO, OPTIMIZER_HIGH_RATIO = 0.85, 1.1
"""1.15 (deep_tabular) and 1.14 (adamw-deep): n = 2, inside the range."""
CLIPPING_LOW_RATIO, CLIPPING_HIGH_RATIO, MOST_CLIPPING_RATIO = 0.7, 1.3, 0.95
"""1.02 (normfree_net): n = 1."""
BUCKETS_LOW_RATIO, BUCKETS_HIGH_RATIO = 0.5, 1.5
"""1.5 (load-forecast in benchmarks/results/fresh, inside): n = 1. Of an exchange on idle cores, as it was timed before:
1.14 (ddp_ranker), 0.75 and 0.88 (ddp-caps, twice), 1.8 (ddp-sensors) and 1.3 (mixer_ddp)."""

GIB = 1 << 30


def make_request(
    facts: Iterable[Mapping[str, Any]],
    step: StepTimes,
    *,
    budget_s: float = BUDGET_S,
    memory_bytes: int = GIB,
) -> dict[str, Any] | None:
    """The probe's tasks, from one process's facts in their order; None when there is nothing to measure.

    Only trainings on a CPU are replayed: host times of an accelerator's operators say nothing of the accelerator.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    optimizers: dict[Any, Mapping[str, Any]] = {}
    loaders: dict[Any, dict[str, Any]] = {}
    compiled = input_stays = False
    for fact in facts:
        kind = fact.get("kind")
        if kind == "optimizer":
            optimizers[fact.get("index")] = fact
        elif kind in ("loader", "loader_stats"):
            loaders.setdefault(fact.get("id"), {}).update(fact)
        elif kind == "direct_input":
            input_stays = bool(fact.get("stays"))
        elif kind == "compile":
            compiled = bool(fact.get("used"))
        elif kind in ("process", "ops", "ddp", "model", "autocast"):
            newest[kind] = fact
    process = newest.get("process", {})
    if process.get("accelerator") or str(newest.get("model", {}).get("device") or "cpu").split(":")[0] != "cpu":
        return None
    local_ranks = max(1, int(process.get("local_world_size") or 1))
    threads = int(process.get("torch_threads") or 1)
    cores = max(1, int(process.get("cores") or 1) // local_ranks)
    request: dict[str, Any] = {
        "schema": "hotloop.probe-request/1",
        "threads": threads,
        "cores": cores,
        "budget_s": budget_s,
        "memory_bytes": memory_bytes,
        "batch_size": _batch_size(loaders.values()) or (None if input_stays else step.batch_size),
        "arms": ["base", "double"],
        "parameters": max((int(fact.get("parameters") or 0) for fact in optimizers.values()), default=0),
    }
    ops = newest.get("ops")
    if ops is not None and ops.get("ops") and not compiled:
        request["ops"] = {"ops": list(ops["ops"])}
        if newest.get("autocast", {}).get("dtype") is None:
            request["arms"].append("bf16")
        # Several ranks share the cores: alone, the probe would not see them get in each other's way.
        if local_ranks == 1 and threads > cores:
            request["arms"].append("threads")
    optimizer = max(optimizers.values(), key=lambda fact: fact.get("parameters") or 0, default=None)
    if optimizer is not None and optimizer.get("numels") and step.optimizer_ns > 0:
        kept = ("class", "own_class", "foreach", "fused", "groups", "numels", "settings")
        request["optimizer"] = {key: optimizer[key] for key in kept if key in optimizer}
    ddp = newest.get("ddp")
    world = int(process.get("world_size") or 1)
    if ddp is not None and ddp.get("bucket_sizes") and 1 < world == local_ranks:
        computing_ns = max(0.0, step.backward_ns - (step.exposed_comm_ns or 0.0)) / step.micro_batches
        request["ddp"] = {
            "bucket_sizes": list(ddp["bucket_sizes"]),
            "ranks": min(world, 4),
            "backward_ns": round(computing_ns),
        }
    return request if any(key in request for key in ("ops", "optimizer", "ddp")) else None


def _batch_size(loaders: Iterable[Mapping[str, Any]]) -> int | None:
    """Batch size of the loader that feeds backward; None when that is not one number."""
    known = list(loaders)
    feeding = [one for one in known if one.get("feeds_backward")] or known
    sizes = {int(one["batch_size"]) for one in feeding if one.get("batch_size")}
    return sizes.pop() if len(sizes) == 1 else None


def basis_of_probe(what: str, run_ns: float, probe_ns: float) -> tuple[Basis, str]:
    """The best basis of a forecast, by the times of its present setting in the run and in the probe; and what to say.

    >>> basis_of_probe("the optimizer's step", 1.5e6, 1e6)
    (<Basis.MEASURED: 'measured'>, '')
    >>> basis_of_probe("the step", 168e6, 0.6e6)[1].partition(":")[0]
    'the step took 168 ms in the run and 0.6 ms in the probe'
    """
    apart = max(run_ns, probe_ns) / max(min(run_ns, probe_ns), 1.0)
    if apart <= AGREES_RATIO:
        return Basis.MEASURED, ""
    doubt = (
        f"{what} took {run_ns * 1e-6:.3g} ms in the run and {probe_ns * 1e-6:.3g} ms in the probe: other programs "
        "used the cores, or the probe does not resemble the run"
    )
    return (Basis.SIMULATED if apart <= RESEMBLES_RATIO else Basis.RULE_OF_THUMB), doubt


def make_forecasts(request: Mapping[str, Any], result: Mapping[str, Any], step: StepTimes) -> dict[str, Forecast]:
    """Forecasts by technique id, as fractions of the step (per sample for a larger batch)."""
    found: list[Forecast | None] = []
    if replay := result.get("replay"):
        parameters = int(request.get("parameters") or 0)
        found += [_forecast_bf16(replay, step, parameters), _forecast_batch(replay, result.get("passes"), step)]
    if threads := result.get("threads"):
        found.append(_forecast_threads(threads, result.get("replay"), step))
    if optimizer := result.get("optimizer"):
        own = request.get("optimizer", {}).get("own_class") is True
        found += [_forecast_optimizer(optimizer, step, arm, own) for arm in ("fused", "foreach")]
        found.append(_forecast_clipping(optimizer, step))
    if buckets := result.get("buckets"):
        found.append(_forecast_buckets(buckets, step))
    return {forecast.technique: forecast for forecast in found if forecast is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coverage:
    """How much of forward and backward the replay explains."""

    replayed_ns: float
    scale: float
    """Brings a replay that took longer than the training itself down to it; 1 otherwise."""
    ratio: float
    call_ns: float
    """Part of what is not explained that calling operators from Python plausibly takes."""

    rounds: int
    """Fewest rounds in which an operator was timed that holds a twentieth of the replay or more."""

    @property
    def trust(self) -> float:
        """Factor for low forecasts: nothing is promised from a replay that explains too little."""
        if self.ratio < LEAST_COVERAGE_RATIO:
            return 0.0
        return 1.0 if self.rounds >= FEWEST_ROUNDS else FEW_ROUNDS_TRUST


def _cover(replay: Mapping[str, Any], step: StepTimes) -> _Coverage:
    engine_ns = float(replay.get("engine_ns") or 0.0)
    replayed_ns = sum(op["count"] * max(0.0, op["base"] - engine_ns) for op in replay["ops"])
    heavy = [op for op in replay["ops"] if op["count"] * op["base"] >= 0.05 * replayed_ns]
    calls = sum(op["count"] for op in replay["ops"]) + sum(1 for _ in replay["skipped"])
    unexplained_ns = max(0.0, step.train_ns - replayed_ns)
    call_ns = min(unexplained_ns, calls * CALL_NS)
    return _Coverage(
        replayed_ns=replayed_ns,
        scale=min(1.0, step.train_ns / replayed_ns) if replayed_ns > 0 else 1.0,
        ratio=min(1.0, (replayed_ns + call_ns) / step.train_ns),
        rounds=min((op["rounds"] for op in heavy), default=0),
        call_ns=call_ns,
    )


def _clamp(value: float, most: float = 1.0) -> float:
    return min(max(value, 0.0), most)


def _forecast_bf16(replay: Mapping[str, Any], step: StepTimes, parameters: int) -> Forecast | None:
    """bfloat16 autocast: activations arrive in float32 at worst, and in bfloat16 at best.

    At worst, too, the copies of all weights and of their gradients (2 bytes each, for every micro-batch) are in memory
    that is fresh from the system each time, as the allocator gives large blocks back. Measured on an MLP of 3.1 million
    parameters and batches of 24: 11.3 ms a step in bfloat16 against 7.3, where the replay alone said 5.8.
    """
    ops = replay["ops"]
    if not any("bf16_cast" in op or "bf16_flow" in op for op in ops):
        return None
    cover = _cover(replay, step)
    worst_ns = sum(op["count"] * (op["base"] - op.get("bf16_cast", op["base"])) for op in ops) * cover.scale
    fresh_ns = 4 * parameters * step.micro_batches * (replay.get("first_touch_ns_per_byte") or 0.0)
    worst_ns -= fresh_ns
    best_ns = sum(op["count"] * (op["base"] - op.get("bf16_flow", op.get("bf16_cast", op["base"]))) for op in ops)
    best_ns *= cover.scale
    low_ns, high_ns = sorted((worst_ns, best_ns))
    mid_ns = (low_ns + high_ns) / 2
    most = min(1.0, cover.replayed_ns * cover.scale / step.step_ns)
    mid = _clamp(mid_ns / step.step_ns, most)
    low = cover.trust * _clamp(BF16_LOW_RATIO * low_ns / step.step_ns - 2 * step.noise_ratio, mid)
    high = max(mid, _clamp(BF16_HIGH_RATIO * high_ns / step.step_ns, most))
    return Forecast(
        technique="bf16-autocast",
        saving_low_ratio=low,
        saving_mid_ratio=mid,
        saving_high_ratio=high,
        settings={"dtype": "bfloat16"},
        evidence=_replay_evidence(replay, cover)
        | {
            "least_saving_ratio": round(low_ns / step.step_ns, 4),
            "most_saving_ratio": round(high_ns / step.step_ns, 4),
            "fresh_memory_ns": round(fresh_ns),
        },
    )


def _forecast_batch(replay: Mapping[str, Any], passes: Mapping[str, Any] | None, step: StepTimes) -> Forecast | None:
    """The batch that pays most: what does not grow with it is shared by more samples.

    For twice the batch, the growth of a step is measured in full; for larger ones, by full passes and in proportion.

    Growth is measured in two ways, which the expected saving takes the middle of: operators one by one find their
    tensors in the caches at both sizes, and whole passes find less there than the step does. Measured (fastest of 3,
    interleaved, other load on the cores): a residual net of narrow layers saved 0.12 where the operators said 0.20, a
    chain of pointwise terms 0.06 where they said 0.24, a wide MLP 0.09 where they said 0.16.
    """
    ops = replay["ops"]
    located_ns = sum(op["count"] * op["base"] for op in ops if "double" in op)
    cover = _cover(replay, step)
    if cover.replayed_ns <= 0 or located_ns < LEAST_LOCATED_RATIO * sum(op["count"] * op["base"] for op in ops):
        return None
    alone_ns = sum(op["count"] * max(0.0, op["double"] - op["base"]) for op in ops if "double" in op) * cover.scale
    growths_ns = [alone_ns]
    if passes and passes["base_ns"] > 0:
        growth_ns = max(0.0, float(passes["double_ns"]) - passes["base_ns"])
        growths_ns.append(growth_ns * min(1.0, step.train_ns / passes["base_ns"]))
    unexplained_ns = max(0.0, step.train_ns - cover.replayed_ns * cover.scale)
    beyond_calls_ns = unexplained_ns - min(unexplained_ns, cover.call_ns)
    # Under accumulation the optimizer's part per sample stays; otherwise it is shared too.
    whole_ns = max(step.train_ns, step.step_ns - step.apart_ns)
    base_ns = whole_ns if step.micro_batches < 1.5 else step.train_ns + step.input_ns

    factor, grown = 2, 1.0

    def saving(growth_ns: float, growing_ns: float) -> float:
        # Each further batch adds this much time; the first one's includes what all of them share.
        added_ns = growth_ns * grown + step.input_ns + growing_ns
        shared = 1.0 - 1.0 / factor
        return _clamp(shared * (base_ns - added_ns) / step.step_ns, shared)

    # What waits for other ranks is shared as far as it is transfer; a wait for a slower rank grows with the batch.
    exposed_ns = 0.0 if step.micro_batches >= 1.5 else step.exposed_comm_ns or 0.0
    expected = (CACHES_RATIO * statistics.fmean(growths_ns), beyond_calls_ns + (step.other_ns + exposed_ns) / 2)
    savings = {2: saving(*expected)}
    for larger, larger_grown in _larger_growths(passes, step.largest_factor):
        factor, grown = larger, larger_grown
        savings[larger] = saving(*expected)
    factor = min(one for one, ratio in savings.items() if ratio >= max(savings.values()) - PAYS_RATIO)
    grown = dict(_larger_growths(passes, step.largest_factor)).get(factor, 1.0)
    low = (
        saving(MOST_CACHES_RATIO * max(growths_ns), unexplained_ns + step.other_ns + exposed_ns) - 2 * step.noise_ratio
    )
    mid = saving(*expected)
    high = saving(LEAST_CACHES_RATIO * min(growths_ns), 0.0)
    mid = _clamp(mid)
    return Forecast(
        technique="larger-batch",
        saving_low_ratio=cover.trust * _clamp(low, mid),
        saving_mid_ratio=mid,
        saving_high_ratio=max(mid, high),
        settings={"factor": factor},
        evidence=_replay_evidence(replay, cover)
        | {
            "saving_by_factor": {str(one): round(ratio, 3) for one, ratio in savings.items()},
            "growth_ratio": round(alone_ns / step.step_ns, 4),
            "growth_in_passes_ratio": round(growths_ns[1] / step.step_ns, 4) if len(growths_ns) > 1 else None,
        },
    )


def _larger_growths(passes: Mapping[str, Any] | None, largest_factor: float) -> list[tuple[int, float]]:
    """(factor, time that each further batch adds to a pass over what the second one adds), measured."""
    if not passes or passes["double_ns"] <= passes["base_ns"]:
        return []
    second_ns = float(passes["double_ns"]) - passes["base_ns"]
    return [
        (int(factor), max(0.0, float(ns) - passes["base_ns"]) / (factor - 1) / second_ns)
        for factor, ns in passes.get("larger") or ()
        if factor <= largest_factor
    ]


def _replay_evidence(replay: Mapping[str, Any], cover: _Coverage) -> dict[str, Any]:
    return {
        "replayed_ratio": round(cover.ratio, 3),
        "replayed_ns": round(cover.replayed_ns),
        "operators": len(replay["ops"]),
        "operators_left_out": sum(1 for one in replay["skipped"] if one["reason"] != "a view"),
        "rounds": cover.rounds,
    }


def _forecast_threads(threads: Mapping[str, Any], replay: Mapping[str, Any] | None, step: StepTimes) -> Forecast | None:
    """As many threads as cores, when there are more: what forward and backward save, and what the optimizer saves.

    None where fewer threads were clearly slower: more threads than cores only take cores from other programs.
    """
    present, fitting = threads["present_ns"], threads["cores_ns"]
    if present <= 0 or replay is None or fitting > DISTURBED_RATIO * present:
        return None
    cover = _cover(replay, step)
    won = 1.0 - fitting / present
    share = min(1.0, step.train_ns / step.step_ns)
    optimizer_ns = threads.get("optimizer_present_ns") or 0
    won_there = 1.0 - threads["optimizer_cores_ns"] / optimizer_ns if optimizer_ns > 0 else 0.0
    share_there = min(1.0 - share, step.optimizer_ns / step.step_ns)
    # What else the step does may use the threads too: preparing batches, logging, clipping.
    share_of_rest = max(0.0, min(1.0 - share - share_there, (step.other_ns + step.input_ns) / step.step_ns))
    basis, doubt = basis_of_probe("forward and backward", step.train_ns, present)
    mid = _clamp(won * share + won_there * share_there)
    return Forecast(
        technique="thread-count",
        saving_low_ratio=cover.trust * _clamp(THREADS_LOW_RATIO * mid - 2 * step.noise_ratio, mid),
        saving_mid_ratio=mid,
        saving_high_ratio=_clamp(max(THREADS_HIGH_RATIO * mid, mid + won * share_of_rest)),
        settings={"torch_threads": threads["cores"]},
        evidence={
            "present_ns": present,
            "with_as_many_as_cores_ns": fitting,
            "optimizer_ns": optimizer_ns or None,
            "optimizer_with_as_many_as_cores_ns": threads.get("optimizer_cores_ns"),
            "rounds": threads["rounds"],
        },
        basis=basis,
        doubt=doubt,
    )


def _forecast_optimizer(optimizer: Mapping[str, Any], step: StepTimes, arm: str, own: bool) -> Forecast | None:
    """Another implementation of the same optimizer, as a share of the time that its steps really took.

    A class of the user's ``own``, which may compute something else, is not replayed: what torch's of that name takes is
    held against the recorded steps.
    """
    present, other = optimizer["present_ns"], optimizer.get(f"{arm}_ns")
    if other is None or present <= 0 or step.optimizer_ns <= 0:
        return None
    replayed = max(optimizer["share_ratio"], 1e-6)
    share = step.optimizer_ns / step.step_ns
    evidence: dict[str, Any] = {
        f"{arm}_ns": round(other / replayed),
        "recorded_ns": round(step.optimizer_ns),
        "rounds": optimizer["rounds"],
        "assumed_settings": dict(optimizer.get("assumed_settings") or {}),
    }
    if own:
        mid = _clamp((step.optimizer_ns - other / replayed) / step.step_ns, share)
        return Forecast(
            technique=f"{arm}-optimizer",
            saving_low_ratio=_clamp(OPTIMIZER_LOW_RATIO * mid - step.noise_ratio, mid),
            saving_mid_ratio=mid,
            saving_high_ratio=share,
            settings={arm: True},
            evidence=evidence,
            basis=Basis.SIMULATED,
        )
    won = 1.0 - other / present
    whole_ns = present / replayed
    # Either all of the recorded phase shrinks as the replayed step does, or only as much as was replayed is won (the
    # rest are closures, hooks, other programs). The middle of these two, on a scale of factors.
    explained = min(1.0, whole_ns / step.optimizer_ns)
    mid = _clamp(won * share * math.sqrt(explained), share)
    basis, doubt = basis_of_probe("the optimizer's step", step.optimizer_ns, whole_ns)
    # The difference that the replay itself measured counts, whatever else the phase holds.
    low = _clamp(OPTIMIZER_LOW_RATIO * won * share * explained - step.noise_ratio, mid)
    return Forecast(
        technique=f"{arm}-optimizer",
        saving_low_ratio=low,
        saving_mid_ratio=mid,
        saving_high_ratio=max(mid, _clamp(OPTIMIZER_HIGH_RATIO * won * share, share)),
        settings={arm: True},
        evidence={"present_ns": round(whole_ns), **evidence},
        basis=basis,
        doubt=doubt,
    )


def _forecast_clipping(optimizer: Mapping[str, Any], step: StepTimes) -> Forecast | None:
    """foreach clipping in place of a loop over the gradients, for trainings that have such a loop."""
    by_hand, foreach = optimizer.get("clip_by_hand_ns"), optimizer.get("clip_foreach_ns")
    if not by_hand or foreach is None:
        return None
    share = max(optimizer["share_ratio"], 1e-6)
    mid = _clamp((by_hand - foreach) / share / step.step_ns, MOST_CLIPPING_RATIO)
    return Forecast(
        technique="foreach-clipping",
        saving_low_ratio=CLIPPING_LOW_RATIO * mid,
        saving_mid_ratio=mid,
        saving_high_ratio=_clamp(CLIPPING_HIGH_RATIO * mid),
        settings={"foreach": True},
        evidence={
            "by_hand_ns": round(by_hand / share),
            "foreach_ns": round(foreach / share),
            "tensors": optimizer["tensors"],
            "rounds": optimizer["rounds"],
        },
    )


def _forecast_buckets(buckets: Mapping[str, Any], step: StepTimes) -> Forecast | None:
    """Default buckets in place of the present ones, both in a backward that computes meanwhile."""
    if step.exposed_comm_ns is None:
        return None
    present_ns, large_ns = float(buckets["present_ns"]), float(buckets["large_ns"])
    exposed_ns = max(0.0, present_ns - float(buckets["compute_ns"]))
    basis, doubt = basis_of_probe("the exchange", step.exposed_comm_ns / step.micro_batches, exposed_ns)
    # Where backward hides more in the run than in the probe, as much less is won.
    hidden = min(1.0, step.exposed_comm_ns / step.micro_batches / max(exposed_ns, 1.0))
    won = hidden * max(0.0, present_ns - large_ns) * step.micro_batches / step.step_ns
    mid = _clamp(won)
    return Forecast(
        technique="ddp-buckets",
        saving_low_ratio=BUCKETS_LOW_RATIO * mid,
        saving_mid_ratio=mid,
        saving_high_ratio=_clamp(BUCKETS_HIGH_RATIO * won),
        settings={"bucket_cap_mb": 25},
        evidence={
            "present_ns": buckets["present_ns"],
            "default_ns": buckets["large_ns"],
            "computing_ns": buckets["compute_ns"],
            "buckets": buckets["buckets"],
            "default_buckets": buckets["large_buckets"],
            "ranks": buckets["ranks"],
        },
        basis=basis,
        doubt=doubt,
    )


def run_probe(request: Mapping[str, Any], python: str, timeout_s: float) -> dict[str, Any]:
    """The measurements of the probe of opportunities, in ``timeout_s`` together. Raises BenchmarkError."""
    begin_ns = monotonic_ns()
    dropped = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
    kept = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith(("HOTLOOP", "TORCHELASTIC"))}
    bare = {**kept, "OMP_NUM_THREADS": str(request.get("threads") or 1), "CUDA_VISIBLE_DEVICES": ""}
    ask = partial(run_program, python=python, what="the probe", environment=bare, is_quiet=True)
    result = ask("opportunities", request, timeout_s=timeout_s)
    if "ddp" in request:
        usual = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "OMP_NUM_THREADS": "1"}
        ranks = [{**usual, "RANK": str(rank)} for rank in range(request["ddp"]["ranks"])]
        left_s = max(1.0, timeout_s - (monotonic_ns() - begin_ns) / 1e9)
        exchange = {**request["ddp"], "store": "{folder}/store"}
        try:
            result["buckets"] = ask("bucket_times", exchange, timeout_s=left_s, ranks=ranks)
        except BenchmarkError as error:
            result["failed"]["buckets"] = str(error)
    return result


def measure_forecasts(
    process: Mapping[str, Any],
    facts: Sequence[Mapping[str, Any]],
    step: StepTimes,
    steady_count: int,
    folder: Path,
    *,
    emit: Callable[[str], None],
    on_begin: Callable[[], None],
) -> dict[str, Forecast]:
    """Measure in a child of the process's interpreter, and keep the result in the run folder.

    ``on_begin`` is called before that, ``emit`` gets what went wrong. Ctrl-C skips it.
    """
    request = make_request(facts, step)
    if request is None or steady_count < FEWEST_STEPS:
        return {}
    on_begin()
    begin_ns = monotonic_ns()
    try:
        result = run_probe(request, str(process.get("executable") or sys.executable), TIMEOUT_S)
    except KeyboardInterrupt:
        return {}
    except BenchmarkError as error:
        emit(f"opportunities were not measured: {error}")
        return {}
    recorded = {"request": request, "result": result, "elapsed_ns": monotonic_ns() - begin_ns}
    try:
        (folder / "probe.json").write_text(json.dumps(recorded))
    except OSError as error:
        emit(f"cannot keep the probe's result in {folder}: {error.strerror}")
    return make_forecasts(request, result, step)


def recall_forecasts(recorded: Mapping[str, Any] | None, step: StepTimes) -> dict[str, Forecast]:
    """The forecasts that were measured when the run ended; none when there were none."""
    if not isinstance(recorded, Mapping):
        return {}
    request, result = recorded.get("request"), recorded.get("result")
    if not isinstance(request, Mapping) or not isinstance(result, Mapping):
        return {}
    return make_forecasts(request, result, step)


def recall_cpu_peaks(folder: Path) -> Mapping[str, float]:
    """FLOPs a second of large products by element type, as the probe of this run measured them; empty without one."""
    try:
        peak = json.loads((folder / "probe.json").read_text())["result"]["peak"]["flops_per_s"]
        return {str(kind): float(rate) for kind, rate in peak.items() if rate > 0}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def recall_probe_ns(folder: Path) -> int | None:
    """How long the probe of this run took; None without one."""
    try:
        return int(json.loads((folder / "probe.json").read_text())["elapsed_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
