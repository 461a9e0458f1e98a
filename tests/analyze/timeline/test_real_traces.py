"""The public traces beside the repository: the figures that their README promises, and the laws on every step."""

from __future__ import annotations

import itertools
import json
from functools import cache

import pytest

from hotloop.core.timeline import RankTimeline
from hotloop.core.trace import DeviceFacts, Trace
from hotloop.evidence.analyze.timeline.reduce import reduce_trace
from hotloop.evidence.trace.inputs import find_traces, read_trace_file

from .plain_trace import TRACES, PlainTrace, call, kernel, op

MEASURES = {
    "span_us": "window_ns",
    "busy_us": "busy_ns",
    "idle_us": "idle_ns",
    "compute_us": "compute_ns",
    "comm_us": "comm_ns",
    "mem_us": "mem_ns",
    "comm_compute_overlap_us": "overlap_ns",
    "exposed_comm_us": "exposed_comm_ns",
}


def list_expected() -> list[tuple[str, str, str]]:
    """(set, rank, file) of everything with expected figures."""
    found = []
    for path in sorted((TRACES / "expected").glob("*.json")):
        expected = json.loads(path.read_text())
        found += [(expected["set"], rank, file) for rank, file in expected["files"].items()]
    return found


def list_files() -> list[str]:
    paths = sorted(p for pattern in ("*.json", "*.json.gz") for p in TRACES.glob(f"*/{pattern}"))
    return [str(p.relative_to(TRACES)) for p in paths if p.parent.name != "expected"]


EXPECTED = list_expected() or [("absent", "0", "")]
FILES = list_files() or ["absent"]
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")


@cache
def read(file: str) -> Trace:
    return next(iter(read_trace_file(*find_traces([TRACES / file]).files)))


@cache
def reduce(file: str) -> RankTimeline:
    return reduce_trace(read(file))


@pytest.mark.parametrize(("name", "rank", "file"), EXPECTED)
def test_the_expected_figures_come_out(name: str, rank: str, file: str) -> None:
    """Integer microseconds are met exactly, others within 2 ns or 1e-8, whichever is larger."""
    exact = json.loads((TRACES / "expected" / f"{name}.json").read_text(), parse_float=str)["exact"][rank]
    (device,) = reduce(file).devices
    assert device.gpu_events == exact["n_gpu_events"]
    whole = all(str(exact[key]).endswith(".0") for key in MEASURES)
    for key, field in MEASURES.items():
        wanted_ns = float(exact[key]) * 1000
        found_ns = getattr(device.partition, field)
        assert abs(found_ns - wanted_ns) <= (0 if whole else max(2.0, 1e-8 * wanted_ns)), field
    assert abs(device.work_ns - float(exact["sum_dur_us"]) * 1000) <= (0 if whole else max(2.0, 1e-8 * device.work_ns))


@pytest.mark.parametrize("file", FILES)
def test_the_laws_hold_on_every_step(file: str) -> None:
    """The values refuse to exist when a law is broken; here the steps are held against each other and the whole."""
    t = reduce(file)
    trace = read(file)
    previous_end = None
    for step in t.steps:
        assert sum(step.phases_ns) == step.host_ns
        assert previous_end is None or step.host_start_ns >= previous_end
        previous_end = step.host_end_ns
    windows = [s for s in t.steps if s.partition is not None]
    # StepWindow refuses causes that do not sum to the idle time of its window.
    assert all((s.idle is None) == (s.partition is None) for s in t.steps)
    for one, two in itertools.pairwise(windows):
        assert one.device_end_ns == two.device_start_ns
    assert [s.is_tail_inclusive for s in windows] == [False] * (len(windows) - 1) + [True] * bool(windows)
    if t.devices:
        device = t.devices[0]
        assert sum(s.gpu_events for s in t.steps) <= device.gpu_events
        busy = sum(s.partition.busy_ns for s in windows if s.partition is not None)
        assert busy <= device.partition.busy_ns
        assert sum(t.anatomy.device_ns) <= device.work_ns
        whole_ns = sum(d.work_ns for d in t.devices)
        assert sum(k.total_ns for k in t.kernels) == whole_ns or t.kernels_left_out_count
        assert t.idle.idle_ns == device.partition.idle_ns
    host_ops = sum(o.host_self_ns for o in t.ops)
    assert t.ops_left_out_count or host_ops <= int(trace.duration_ns.sum())


def find(folder: str) -> str:
    return next((f for f in FILES if f.startswith(folder)), "absent")


def share(t: RankTimeline, phase: str) -> float:
    return t.anatomy.breakdown.share(phase)


def test_resnet_without_workers_waits_for_its_input() -> None:
    t = reduce(find("resnet50_workers_0"))
    assert share(t, "input_wait") == pytest.approx(0.40, abs=0.02)
    assert t.idle.late_data_wait_ns > t.idle.idle_ns // 2
    assert t.idle.blamed[0].name.startswith("enumerate(DataLoader)#_SingleProcess")


def test_resnet_with_workers_does_not() -> None:
    t = reduce(find("resnet50_workers_4"))
    assert share(t, "input_wait") < 0.02
    steps = sorted(s.host_ns for s in t.steps)
    assert sum(steps) / len(steps) == pytest.approx(139.7e6, rel=1e-3)


def test_collectives_are_told_by_metadata_where_the_file_has_it() -> None:
    sources: dict[str, set[str]] = {}
    for folder in ("a100_ddp_rank3of8", "dlrm_8ranks_v100", "mi300x_resnet_rccl"):
        sources[folder] = {g.comm_source for g in reduce(find(folder)).comm_groups}
    assert sources == {
        "a100_ddp_rank3of8": {"metadata"},
        "dlrm_8ranks_v100": {"metadata"},
        # Some of its kernels have lost their launches: only the name is left.
        "mi300x_resnet_rccl": {"metadata", "name"},
    }


def test_checkpointed_activations_are_found() -> None:
    assert (reduce(find("mi300x_resnet_rccl")).ratios.recompute_ratio or 0) > 0.02
    assert reduce(find("v100_ns_resolution")).ratios.recompute_ratio == 0


def test_the_wait_for_an_item_drains_the_device() -> None:
    idle = reduce(find("cp_event_sync/")).idle
    assert [(s.name, s.total_ns) for s in idle.syncs] == [("aten::is_nonzero", 100_000)]


def test_gloo_waits_are_seen_on_the_host() -> None:
    t = reduce("cpu/ddp_gloo_rank0.pt.trace.json.gz")
    assert t.devices == ()
    assert share(t, "communication") > 0.5
    assert share(t, "other") < 0.05


def test_kernels_of_operators_that_are_not_counted_make_mfu_unknown() -> None:
    """40 us of a product that is counted, 60 us of one that another library ran."""
    rows = [
        op("aten::mm", 0, 5, shapes="[[128,64],[64,32]]", dtypes='["float","float"]'),
        call("cudaLaunchKernel", 1, 2, 1),
        kernel("sgemm", 10, 40, 1),
        op("flash_attn::_flash_attn_forward", 6, 5),
        call("cudaLaunchKernel", 7, 2, 2),
        kernel("flash_fwd_kernel", 60, 60, 2),
    ]
    device = (DeviceFacts(index=0, name="Tesla V100-SXM2-32GB"),)
    known = reduce_trace(PlainTrace(rows[:3], devices=device)).utilization
    assert known.mfu_ratio == pytest.approx(2 * 128 * 64 * 32 / 40e-6 / 15.7e12)
    unknown = reduce_trace(PlainTrace(rows, devices=device)).utilization
    assert unknown.mfu_ratio is None
    assert unknown.unknown["mfu_ratio"].endswith("as in flash_fwd_kernel")
