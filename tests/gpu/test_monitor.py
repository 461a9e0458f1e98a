"""The hand-instrumented Monitor on a CUDA device."""

import time

import pytest
import torch

from hotloop import Monitor
from hotloop.agent.observe.event_pool import cuda_event_pool

pytestmark = pytest.mark.gpu


@pytest.fixture
def big() -> torch.Tensor:
    x = torch.randn(4096, 4096, device="cuda")
    x @ x
    torch.cuda.synchronize()
    return x


def test_the_device_column_holds_what_the_host_does_not_see(big):
    monitor = Monitor(warmup_steps=0)
    for _ in range(5):
        with monitor.step(), monitor.phase("forward"):
            for _ in range(10):
                big @ big
    torch.cuda.synchronize()
    summary = monitor.summary()
    (forward,) = summary.phases
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(10):
        big @ big
    end.record()
    torch.cuda.synchronize()
    assert forward.device_mean_ns is not None
    assert forward.device_steps_count == 5
    assert forward.device_mean_ns == pytest.approx(begin.elapsed_time(end) * 1e6, rel=0.5)


def test_nothing_waits_for_the_device(big):
    monitor = Monitor(warmup_steps=0)
    start_s = time.perf_counter()
    with monitor.step(), monitor.phase("forward"):
        for _ in range(200):
            y = big @ big
        monitor.record_metric("norm", y.norm())
    host_s = time.perf_counter() - start_s
    torch.cuda.synchronize()
    whole_s = time.perf_counter() - start_s
    assert host_s < 0.5 * whole_s
    (norm,) = monitor.summary().metrics
    assert norm.last == pytest.approx(float(y.norm()), rel=1e-3)


def test_phases_inside_a_graph_capture_leave_it_intact(big):
    monitor = Monitor(warmup_steps=0)
    with monitor.step(), monitor.phase("before"):
        big @ big
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), monitor.step(), monitor.phase("captured"):
        y = big @ big
        monitor.record_metric("norm", y.norm())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(y, big @ big)
    captured = next(phase for phase in monitor.summary().phases if phase.path == ("captured",))
    assert captured.device_mean_ns is None


def test_a_pair_over_two_streams_has_no_time(big):
    pool = cuda_event_pool(torch.cuda.current_device())
    token = pool.begin("a")
    assert token is not None
    with torch.cuda.stream(torch.cuda.Stream()):
        assert not pool.end(token)
    assert pool.unknown_count == 1
