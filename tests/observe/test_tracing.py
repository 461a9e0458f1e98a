import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.agent.observe.nvtx import NvtxRecorder
from hotloop.agent.observe.tracing import make_tracing
from hotloop.agent.replay.recorder import BACKWARD, FORWARD, TEMPLATE, Recorder
from hotloop.core.recording import CLOSED_BY_BACKWARD, CLOSED_BY_END, CLOSED_BY_OPTIMIZER, FIELD


class FakeSession:
    """What a subscriber needs of a session; keeps the facts."""

    def __init__(self) -> None:
        self.recorder = Recorder(time.perf_counter_ns)
        self.facts: list[dict[str, Any]] = []

    def record(self, fact: dict[str, Any]) -> None:
        self.facts.append(fact)

    def unsubscribe(self, subscriber: Any) -> None:
        self.subscriber = None


def make(folder: Path, plan: str, ranks: str = "all") -> tuple[Any, FakeSession]:
    tracing = make_tracing({"run": str(folder), "trace": plan, "trace_ranks": ranks})
    assert tracing is not None
    return tracing, FakeSession()


def row(closed_by: int = CLOSED_BY_OPTIMIZER, optimizer: int = 0) -> list[int]:
    values = list(TEMPLATE)
    values[FIELD["closed_by"]], values[FIELD["optimizer_index"]] = closed_by, optimizer
    return values


def train(tracing: Any, session: FakeSession, steps: int) -> list[bool]:
    """Close ``steps`` rows; which of them were flagged as profiled."""
    flagged = []
    for _ in range(steps):
        torch.ones(4).sum()
        flagged.append(session.recorder.in_deep_window)
        tracing(session, row())
    return flagged


def step_names(folder: Path) -> list[list[str]]:
    found = []
    for path in sorted((folder / "traces").glob("*.pt.trace.json")):
        events = json.loads(path.read_text())["traceEvents"]
        found.append(sorted({e["name"] for e in events if e.get("name", "").startswith("ProfilerStep")}))
    return found


def test_no_trace_without_the_option(tmp_path):
    assert make_tracing({"run": str(tmp_path)}) is None


def test_the_planned_steps_are_recorded_and_flagged(tmp_path):
    tracing, session = make(tmp_path, "2:1:2:2")
    flagged = train(tracing, session, 14)
    assert step_names(tmp_path) == [["ProfilerStep#4", "ProfilerStep#5"], ["ProfilerStep#10", "ProfilerStep#9"]]
    # From the warm-up to the step in which the file was written.
    assert [i + 1 for i, flag in enumerate(flagged) if flag] == [3, 4, 5, 6, 8, 9, 10, 11]
    assert [(fact["kind"], fact["steps"]) for fact in session.facts] == [("trace", [4, 5]), ("trace", [9, 10])]
    assert (tmp_path / session.facts[0]["path"]).exists()


def test_the_first_steps_may_be_the_warmup(tmp_path):
    tracing, session = make(tmp_path, "0:1:2")
    train(tracing, session, 4)
    assert step_names(tmp_path) == [["ProfilerStep#2", "ProfilerStep#3"]]


def test_a_rank_that_is_not_wanted_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    tracing, session = make(tmp_path, "1:0:1", ranks="0,2")
    assert train(tracing, session, 5) == [False] * 5
    assert not (tmp_path / "traces").exists()


def test_the_file_is_named_after_the_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    tracing, session = make(tmp_path, "1:0:1", ranks="2")
    train(tracing, session, 3)
    (path,) = (tmp_path / "traces").iterdir()
    assert path.name.startswith("rank2_")


def test_only_the_first_optimizer_counts_steps(tmp_path):
    tracing, session = make(tmp_path, "1:0:1")
    for _ in range(3):
        tracing(session, row(optimizer=0))
        tracing(session, row(optimizer=1))
    assert [fact["steps"] for fact in session.facts] == [[2, 2]]


def test_backwards_before_the_first_optimizer_step_are_micro_batches(tmp_path):
    tracing, session = make(tmp_path, "1:0:1")
    for _ in range(3):
        tracing(session, row(CLOSED_BY_BACKWARD, -1))
    train(tracing, session, 3)
    assert [fact["steps"] for fact in session.facts] == [[2, 2]]


def test_without_an_optimizer_backwards_are_steps(tmp_path):
    tracing, session = make(tmp_path, "6:0:1")
    for _ in range(8):
        tracing(session, row(CLOSED_BY_BACKWARD, -1))
    assert [fact["steps"] for fact in session.facts] == [[7, 7]]


def test_a_training_that_ends_early_keeps_what_was_recorded(tmp_path):
    tracing, session = make(tmp_path, "1:1:5")
    train(tracing, session, 4)
    tracing(session, row(CLOSED_BY_END, -1))
    assert [fact["steps"] for fact in session.facts] == [[3, 4]]
    assert not torch._C._autograd._profiler_enabled()


def test_another_profiler_is_left_alone(tmp_path):
    tracing, session = make(tmp_path, "2:0:2")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        train(tracing, session, 4)
    assert len(theirs.key_averages()) > 0
    assert not (tmp_path / "traces").exists()
    assert [f["message"] for f in session.facts] == ["no trace of the steps up to 4: another profiler was running"]


def test_a_profiler_that_starts_meanwhile_gets_its_turn(tmp_path):
    tracing, session = make(tmp_path, "1:0:3:2")
    train(tracing, session, 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        train(tracing, session, 1)
    assert len(theirs.key_averages()) > 0
    assert [f["message"] for f in session.facts] == ["a trace was interrupted: another profiler started"]
    train(tracing, session, 6)
    assert step_names(tmp_path) == [["ProfilerStep#6", "ProfilerStep#7", "ProfilerStep#8"]]


def test_torch_is_as_it_was_when_the_plan_is_over(tmp_path):
    module = torch.autograd.profiler
    before = (module._prepare_profiler, module._enable_profiler, module._disable_profiler)
    tracing, session = make(tmp_path, "1:0:1")
    train(tracing, session, 4)
    assert (module._prepare_profiler, module._enable_profiler, module._disable_profiler) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_its_parents_trace_alone(tmp_path):
    tracing, session = make(tmp_path, "1:0:3")
    train(tracing, session, 2)
    pid = os.fork()
    if not pid:
        for _ in range(4):
            tracing(session, row())
        os._exit(len(session.facts))
    assert os.waitpid(pid, 0)[1] == 0
    train(tracing, session, 3)
    assert step_names(tmp_path) == [["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]]


def test_a_failure_never_reaches_the_training(tmp_path):
    (tmp_path / "traces").write_text("in the way")
    tracing, session = make(tmp_path, "1:0:1")
    train(tracing, session, 5)
    assert session.facts == []
    assert not torch._C._autograd._profiler_enabled()


# -- NVTX


class FakeNvtx:
    def __init__(self) -> None:
        self.said: list[str] = []

    def range_push(self, name: str) -> None:
        self.said.append(f"push {name}")

    def range_pop(self) -> None:
        self.said.append("pop")

    def range_start(self, name: str) -> str:
        self.said.append(f"start {name}")
        return name

    def range_end(self, name: str) -> None:
        self.said.append(f"end {name}")


def test_phases_and_steps_are_nvtx_ranges():
    nvtx = FakeNvtx()
    recorder = NvtxRecorder(nvtx, time.perf_counter_ns)
    recorder.enter(FORWARD)
    recorder.leave()
    recorder.close(CLOSED_BY_OPTIMIZER, 0)
    recorder.enter(BACKWARD)
    recorder.close_tail()
    assert nvtx.said == [
        "start step 1", "push forward", "pop", "end step 1", "start step 2", "push backward", "pop", "end step 2",
    ]  # fmt: skip


def test_an_nvtx_range_never_outlives_a_reset():
    nvtx = FakeNvtx()
    recorder = NvtxRecorder(nvtx, time.perf_counter_ns)
    recorder.enter(FORWARD)
    recorder.reset()
    recorder.leave()
    assert nvtx.said == ["start step 1", "push forward", "pop"]


def test_a_training_with_hooks_is_traced(tmp_path):
    script = (
        "import sys, torch\n"
        "from hotloop.agent.attach.agent import arm_agent\n"
        "options = {'run': sys.argv[1], 'deep': False, 'trace': '2:1:2'}\n"
        "assert arm_agent(options) is not None\n"
        "model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(9):\n"
        "    model(torch.randn(2, 4)).sum().backward(); optimizer.step()\n"
    )
    (tmp_path / "processes").mkdir()
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert step_names(tmp_path) == [["ProfilerStep#4", "ProfilerStep#5"]]


# -- threads and forks: torch's profiler belongs to the thread that started it

BESIDE = """
import os, sys, threading, time, torch
from hotloop.agent.replay.recorder import Recorder, TEMPLATE
from hotloop.core.recording import FIELD, CLOSED_BY_OPTIMIZER
from hotloop.agent.observe.tracing import make_tracing

class Session:
    recorder = Recorder(time.perf_counter_ns)
    def record(self, fact):
        print(fact.get("message", fact["kind"]) + "\\n", end="", flush=True)

session, tracing = Session(), make_tracing({"run": sys.argv[1], "trace": "1:0:50", "trace_ranks": "all"})
row = list(TEMPLATE)
row[FIELD["closed_by"]] = CLOSED_BY_OPTIMIZER

def train(steps):
    for _ in range(steps):
        torch.ones(4).sum()
        tracing(session, row)
"""


def run_beside(folder: Path, text: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BESIDE + text, str(folder)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")[:-1]


def test_a_training_on_another_thread_keeps_what_was_recorded_when_that_thread_ends(tmp_path):
    said = run_beside(tmp_path, "thread = threading.Thread(target=train, args=(4,)); thread.start(); thread.join()\n")
    assert said == ["trace"]
    assert step_names(tmp_path) == [["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]]


def test_a_thread_that_never_ends_loses_its_recording_and_nothing_else(tmp_path):
    text = (
        "def forever():\n"
        "    train(3); trained.set(); threading.Event().wait()\n"
        "trained = threading.Event()\n"
        "threading.Thread(target=forever, daemon=True).start()\n"
        "trained.wait()\n"
    )
    said = run_beside(tmp_path, text)
    assert said == ["a trace was lost: its thread did not end before the process"]
    assert step_names(tmp_path) == []


def test_a_profiler_of_another_thread_waits_until_the_recording_has_been_stopped_on_its_own(tmp_path):
    text = (
        "def profile():\n"
        "    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:\n"
        "        torch.ones(9).sum()\n"
        "    print(f\"{any(event.key == 'aten::sum' for event in theirs.key_averages())}\\n\", end='', flush=True)\n"
        "train(3)\n"
        "thread = threading.Thread(target=profile); thread.start()\n"
        "while thread.is_alive():\n"
        "    train(1); time.sleep(0.05)\n"  # the 50 steps must not be over before the other one starts
    )
    said = run_beside(tmp_path, text)  # by two threads, in either order
    assert sorted(said) == ["True", "a trace was interrupted: another profiler started"]
    assert step_names(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc here")
def test_a_forked_child_does_not_keep_the_operators_that_it_runs(tmp_path):
    text = (
        "def resident_bytes():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')\n"
        "def grow():\n"
        "    x = torch.ones(4)\n"
        "    before = resident_bytes()\n"
        "    for _ in range(8_000):\n"
        "        x.add_(1)\n"
        "    return resident_bytes() - before\n"
        "grow()\n"
        "train(2)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    grow(); os._exit(min(200, grow() >> 20))\n"  # the first touches pages that it shares with its parent
        "print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) < 8, flush=True)\n"
        "print('parent', grow() > 12 << 20, flush=True)\n"
    )
    assert run_beside(tmp_path, text) == ["child True", "parent True", "trace"]
