import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.findings import Basis
from hotloop.core.measurement import StepTimes
from hotloop.measure.bench import program
from hotloop.measure.bench.probe import make_forecasts, make_request, run_probe
from hotloop.measure.bench.program import BenchmarkError
from tests.waiting import is_alive, wait_until

OPS = {
    "kind": "ops",
    "steps": 3,
    "ops": [
        {
            "name": "aten::linear",
            "shapes": [[4, 8], [16, 8], [16]],
            "dtypes": ["float"] * 3,
            "inputs": ["", "", ""],
            "count": 2,
            "cpu_ns": 1000,
            "backward": False,
        }
    ],
}
PROCESS = {"kind": "process", "torch_threads": 1, "cores": 2, "world_size": 1, "local_world_size": 1}
LOADER = {"kind": "loader", "id": 1, "batch_size": 4}
OPTIMIZER = {"kind": "optimizer", "index": 0, "class": "AdamW", "parameters": 144, "numels": [[128, 1], [16, 1]]}
DDP = {"kind": "ddp", "bucket_sizes": [1000, 1000]}
STEP = StepTimes(step_ns=10e6, forward_ns=2e6, backward_ns=4e6, optimizer_ns=2e6, input_ns=0.0)


def replayed(base: float = 3e6, **arms: float) -> dict[str, Any]:
    """A replay of one operator that runs twice a step."""
    one = {"index": 0, "name": "aten::linear", "count": 2, "recorded_ns": 1000, "base": base, "rounds": 9}
    return {"replay": {"ops": [one | arms], "skipped": [], "engine_ns": 0}}


def optimizer(**times: float) -> dict[str, Any]:
    return {"optimizer": {"share_ratio": 1.0, "tensors": 2, "rounds": 9} | times}


# Requests


OTHER_LOADER = LOADER | {"id": 2, "batch_size": 8}
FEEDS = {"kind": "loader_stats", "id": 1, "feeds_backward": True}
BUCKET_REQUEST = {"bucket_sizes": [1000, 1000], "ranks": 2, "backward_ns": STEP.backward_ns}


@pytest.mark.parametrize(
    ("facts", "batch_size", "expected"),
    [
        ([OPS, LOADER], None, {"batch_size": 4, "arms": ["base", "double", "bf16"]}),
        ([OPS, LOADER, OPTIMIZER], None, {"optimizer": {"class": "AdamW", "numels": [[128, 1], [16, 1]]}}),
        # without a loader the model's inputs tell the batch, unless they stay the same
        ([OPS], 2, {"batch_size": 2}),
        ([OPS, {"kind": "direct_input", "stays": True}], 2, {"batch_size": None}),
        # of several loaders the one that feeds backward counts
        ([OPS, LOADER, OTHER_LOADER], None, {"batch_size": None}),
        ([OPS, LOADER, OTHER_LOADER, FEEDS], None, {"batch_size": 4}),
        # an accelerator is not replayed, and nothing recorded is nothing to probe
        ([PROCESS | {"accelerator": "cuda"}, OPS], None, None),
        ([], None, None),
        ([OPS, LOADER, {"kind": "autocast", "dtype": "bfloat16"}], None, {"arms": ["base", "double"]}),
        ([PROCESS | {"torch_threads": 8}, OPS, LOADER], None, {"arms": ["base", "double", "bf16", "threads"]}),
        # buckets only where all ranks share a host
        ([PROCESS | {"world_size": 2, "local_world_size": 2}, DDP], None, {"ddp": BUCKET_REQUEST}),
        ([PROCESS | {"world_size": 4, "local_world_size": 2}, DDP], None, None),
    ],
)
def test_what_a_request_holds(
    facts: list[dict[str, Any]], batch_size: int | None, expected: dict[str, Any] | None
) -> None:
    request = make_request([PROCESS, *facts], replace(STEP, batch_size=batch_size))
    found = None if request is None else {key: request[key] for key in expected or {}}
    assert found == expected


# Forecasts


THREADS = {"present_ns": 6e6, "cores_ns": 3e6, "cores": 2, "rounds": 5}
BUCKETS = {"present_ns": 9e6, "large_ns": 6e6, "compute_ns": 5e6, "buckets": 40, "large_buckets": 1, "ranks": 2}
EXPOSED = replace(STEP, step_ns=20e6, exposed_comm_ns=5e6)
LOADING = replace(STEP, input_ns=1e6, other_ns=1e6)
WAITING = replace(STEP, backward_ns=8e6, exposed_comm_ns=4e6, optimizer_ns=0.0)
FOREIGN = StepTimes(step_ns=1e9, forward_ns=4e8, backward_ns=4e8, optimizer_ns=168e6, input_ns=0.0)
THREADS_OF_OPTIMIZER = {"optimizer_present_ns": 2e6, "optimizer_cores_ns": 0.5e6}


@pytest.mark.parametrize(
    ("technique", "result", "step", "expected"),
    [
        # bfloat16 lies between casting everything and nothing; a replay slower than the training is scaled down
        ("bf16-autocast", replayed(bf16_cast=2e6, bf16_flow=1e6), STEP, {"mid": 0.3, "low": 0.16, "high": 0.46}),
        ("bf16-autocast", replayed(bf16_cast=5e6, bf16_flow=4e6), STEP, {"mid": 0.0}),
        ("bf16-autocast", replayed(base=3e6, bf16_cast=1.5e6), STEP, {"mid": 0.3}),
        ("bf16-autocast", replayed(base=6e6, bf16_cast=3e6), STEP, {"mid": 0.3}),
        # operators that do not grow with the batch, that double, beside what is not shared
        ("larger-batch", replayed(double=3e6), STEP, {"mid": 0.5}),
        ("larger-batch", replayed(double=6e6), STEP, {"mid": 0.5 * (10 - 1.05 * 6) / 10}),
        ("larger-batch", replayed(double=6e6), replace(STEP, apart_ns=2e6), {"mid": 0.5 * (8 - 1.05 * 6) / 10}),
        ("larger-batch", replayed(double=3e6), replace(STEP, optimizer_ns=4e6, micro_batches=4.0), {"mid": 0.3}),
        ("larger-batch", replayed(double=3e6), replace(STEP, optimizer_ns=0.0, input_ns=4e6), {"mid": 0.3}),
        ("larger-batch", replayed(double=6e6), WAITING, {"low": 0.0, "mid": 0.5 * (10 - 1.05 * 6 - 2) / 10}),
        ("fused-optimizer", optimizer(present_ns=2e6, fused_ns=0.5e6), STEP, {"mid": 0.15}),
        ("foreach-optimizer", optimizer(present_ns=2e6, foreach_ns=2.2e6), STEP, {"mid": 0.0}),
        # 0.4 of 10 ms was measured; the other 1.5 ms of the phase may be anything
        ("fused-optimizer", optimizer(present_ns=0.5e6, fused_ns=0.1e6), STEP, {"low": 0.85 * 0.04, "high": 0.176}),
        ("fused-optimizer", optimizer(present_ns=0.6e6, fused_ns=0.06e6), FOREIGN, {"mid": 0.009036}),
        (
            "foreach-clipping",
            optimizer(present_ns=2e6, clip_by_hand_ns=1.5e6, clip_foreach_ns=0.5e6),
            STEP,
            {"mid": 0.1},
        ),
        # half of forward and backward (6 of 10 ms), and three quarters of the optimizer's 2 ms
        ("thread-count", {"threads": THREADS} | replayed(), STEP, {"mid": 0.3}),
        ("thread-count", {"threads": THREADS | THREADS_OF_OPTIMIZER} | replayed(), STEP, {"mid": 0.45}),
        ("thread-count", {"threads": THREADS} | replayed(), LOADING, {"high": 0.3 + 0.5 * 0.2}),
        # larger buckets win what the probe saw beside a backward, less where the run hides more
        ("ddp-buckets", {"buckets": BUCKETS}, EXPOSED, {"mid": 3 / 20}),
        ("ddp-buckets", {"buckets": BUCKETS}, replace(EXPOSED, exposed_comm_ns=1e6), {"mid": 3 / 20 / 4}),
    ],
)
def test_what_a_probe_lets_expect(
    technique: str, result: dict[str, Any], step: StepTimes, expected: dict[str, float]
) -> None:
    forecast = make_forecasts({}, result, step)[technique]
    found = {name: getattr(forecast, f"saving_{name}_ratio") for name in ("low", "mid", "high")}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    assert 0.0 <= found["low"] <= found["mid"] <= found["high"]


def test_bfloat16_copies_of_the_weights_may_need_fresh_memory_in_every_step() -> None:
    result = replayed(bf16_cast=2e6, bf16_flow=1e6)
    result["replay"]["first_touch_ns_per_byte"] = 0.25
    forecast = make_forecasts({"parameters": 2_000_000}, result, STEP)["bf16-autocast"]
    # 8 MB at 0.25 ns a byte: 2 ms of a step of 10 ms at worst, half of them in the middle.
    assert forecast.evidence["fresh_memory_ns"] == 2_000_000
    assert forecast.saving_mid_ratio == pytest.approx(0.2)
    assert forecast.saving_low_ratio == pytest.approx(0.0)


def test_a_replay_that_explains_too_little_promises_nothing() -> None:
    forecast = make_forecasts({}, replayed(base=1e6, bf16_cast=0.4e6, bf16_flow=0.4e6), STEP)["bf16-autocast"]
    assert forecast.evidence["replayed_ratio"] < 0.6
    assert forecast.saving_low_ratio == 0.0
    assert forecast.saving_mid_ratio > 0.0


def test_few_rounds_lower_what_is_promised() -> None:
    many, few = replayed(bf16_cast=2e6, bf16_flow=1e6), replayed(bf16_cast=2e6, bf16_flow=1e6)
    few["replay"]["ops"][0]["rounds"] = 2
    sure, unsure = (make_forecasts({}, one, STEP)["bf16-autocast"] for one in (many, few))
    assert unsure.saving_low_ratio < sure.saving_low_ratio
    assert unsure.saving_mid_ratio == sure.saving_mid_ratio


def test_whole_passes_that_grow_more_lower_what_a_larger_batch_is_said_to_win() -> None:
    alone = make_forecasts({}, replayed(base=3e6, double=3.3e6), STEP)["larger-batch"]
    passes = {"passes": {"base_ns": 6e6, "double_ns": 11e6}}
    both = make_forecasts({}, replayed(base=3e6, double=3.3e6) | passes, STEP)["larger-batch"]
    # Operators alone grow by 0.6 ms of the step's 10, whole passes by 5: half of the middle less is saved.
    assert alone.saving_mid_ratio - both.saving_mid_ratio == pytest.approx(1.05 * (0.28 - 0.06) / 2)
    assert both.saving_low_ratio < alone.saving_low_ratio
    assert both.saving_high_ratio == alone.saving_high_ratio
    assert both.evidence["growth_in_passes_ratio"] == 0.5


def test_a_class_of_the_users_own_is_held_against_torchs_as_it_ran() -> None:
    own = {"optimizer": {"own_class": True}}
    found = make_forecasts(own, optimizer(present_ns=0.6e6, fused_ns=0.5e6), STEP)["fused-optimizer"]
    assert found.saving_mid_ratio == pytest.approx(0.15)
    assert found.basis is Basis.SIMULATED
    assert "present_ns" not in found.evidence


@pytest.mark.parametrize(
    ("run_ms", "basis"),
    [(1.5, Basis.MEASURED), (0.7, Basis.MEASURED), (3.0, Basis.SIMULATED), (168.0, Basis.RULE_OF_THUMB)],
)
def test_a_probe_that_disagrees_with_the_run_measured_nothing(run_ms: float, basis: Basis) -> None:
    step = StepTimes(step_ns=1e9, forward_ns=4e8, backward_ns=4e8, optimizer_ns=run_ms * 1e6, input_ns=0.0)
    forecast = make_forecasts({}, optimizer(present_ns=1e6, fused_ns=0.2e6), step)["fused-optimizer"]
    assert forecast.basis is basis
    assert ("other programs used the cores" in forecast.doubt) is (basis is not Basis.MEASURED)
    # No more is promised than what the probe timed; expected is no more than all of the phase shrinking alike.
    assert forecast.saving_low_ratio < 0.8e-3
    assert forecast.saving_mid_ratio <= 0.8 * run_ms * 1e-3 + 1e-9


def test_a_probe_in_which_fewer_threads_were_slower_says_nothing() -> None:
    disturbed = {"threads": THREADS | {"cores_ns": 12e6}} | replayed()
    assert "thread-count" not in make_forecasts({}, disturbed, STEP)


def grown(*larger: list[float]) -> dict[str, Any]:
    return replayed(base=3e6, double=3.3e6) | {"passes": {"base_ns": 6e6, "double_ns": 6.6e6, "larger": list(larger)}}


def test_the_batch_that_pays_most_is_named() -> None:
    step = replace(STEP, largest_factor=64.0)
    twice = make_forecasts({}, grown(), step)["larger-batch"]
    forecast = make_forecasts({}, grown([4, 7.8e6], [16, 15e6], [64, 43.8e6]), step)["larger-batch"]
    # Each further batch adds 0.6 ms to the 6 of a pass, at any size: of 64 times the batch nearly all else is shared.
    assert twice.settings == {"factor": 2}
    assert forecast.settings == {"factor": 64}
    assert forecast.saving_mid_ratio == pytest.approx(2 * 63 / 64 * twice.saving_mid_ratio)
    assert forecast.saving_low_ratio <= forecast.saving_mid_ratio <= forecast.saving_high_ratio <= 63 / 64


def test_a_larger_batch_that_pays_hardly_more_is_not_named() -> None:
    step = replace(STEP, largest_factor=64.0)
    # Beyond 4 times the batch the passes leave the caches: what each further one adds grows.
    forecast = make_forecasts({}, grown([4, 7.8e6], [16, 80e6], [64, 500e6]), step)["larger-batch"]
    assert forecast.settings == {"factor": 4}
    assert set(forecast.evidence["saving_by_factor"]) == {"2", "4", "16", "64"}


# Running


def put_program(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This program in place of the one that starts all others; its answer goes to sys.argv[3]."""
    (folder / "start.py").write_text(text)
    monkeypatch.setattr(program, "START", folder / "start.py")


def test_the_probe_runs_as_a_plain_file_and_gives_forecasts() -> None:
    ranks = PROCESS | {"world_size": 2, "local_world_size": 2, "cores": 4}
    request = make_request([ranks, OPS, LOADER, OPTIMIZER, DDP], STEP, budget_s=0.3)
    assert request is not None
    result = run_probe(request, sys.executable, 120.0)
    assert result["failed"] == {}
    assert min(result["buckets"][f"{arm}_ns"] for arm in ("present", "large", "compute")) > 0
    assert {"bf16-autocast", "larger-batch", "fused-optimizer"} <= set(make_forecasts(request, result, STEP))


def test_a_probe_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    put_program(tmp_path, text, monkeypatch)
    with pytest.raises(BenchmarkError, match="stopped after 1 s"):
        run_probe({"threads": 1}, sys.executable, 1.0)
    assert wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_a_probe_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_program(tmp_path, "raise SystemExit('no torch here')", monkeypatch)
    with pytest.raises(BenchmarkError, match="no torch here"):
        run_probe({"threads": 1}, sys.executable, 30.0)


def test_the_probe_neither_attaches_nor_joins_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_RUN", "somewhere")
    monkeypatch.setenv("RANK", "1")
    put_program(tmp_path, "import json, os, sys\njson.dump(dict(os.environ), open(sys.argv[3], 'w'))\n", monkeypatch)
    seen = run_probe({"threads": 3}, sys.executable, 30.0)
    assert seen["OMP_NUM_THREADS"] == "3"
    assert {"HOTLOOP_RUN", "RANK", "PYTHONPATH"}.isdisjoint(seen)
    assert os.environ["RANK"] == "1"
