"""A small training loop -> JSON of its own cost: one process of benchmarks/overhead.py, with or without the agent.

Written as a user would write it; ``measure_hooks`` and its kin look at the agent that the environment has attached, and
nothing else here knows hotloop.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64
BLOCK_STEPS = 25


class Loop:
    """A model, its loader and one optimizer; ``step`` trains on the next batch, over as many epochs as asked for."""

    def __init__(self, kind: str, width: int) -> None:
        torch.manual_seed(0)
        if kind == "deep":  # 1 + 200 modules
            layers: list[nn.Module] = []
            for _ in range(100):
                layers += [nn.Linear(16, 16), nn.Tanh()]
            self.model: nn.Module = nn.Sequential(*layers)
            features = classes = 16
        else:
            features, classes = width // 2, 10
            self.model = nn.Sequential(
                nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
            )
        x, y = torch.randn(200 * BATCH, features), torch.randint(0, classes, (200 * BATCH,))
        self.loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.criterion = nn.CrossEntropyLoss()
        self.batches = self._batches()

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()


def timed_blocks(loop: Loop, blocks: int, around: Callable[[], Any]) -> list[float]:
    """Thread CPU time per step of each block, in ns."""
    found = []
    for _ in range(blocks):
        start_ns = time.thread_time_ns()
        for _ in range(BLOCK_STEPS):
            with around():
                loop.step()
        found.append((time.thread_time_ns() - start_ns) / BLOCK_STEPS)
    return found


def memory_bytes() -> dict[str, int]:
    """Resident memory: all of it, and its peak."""
    found = {}
    with open("/proc/self/status") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("VmRSS", "VmHWM", "RssAnon", "RssFile", "RssShmem"):
                found[name] = int(rest.split()[0]) * 1024
    return found


def train(options: argparse.Namespace) -> dict[str, Any]:
    """The loop itself under what ``--around`` names."""
    loop = Loop(options.model, options.width)
    around: Callable[[], Any] = contextlib.nullcontext
    whole: Any = contextlib.nullcontext()
    if options.around == "profiler":
        whole = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    elif options.around == "traceml":
        import traceml_ai  # type: ignore[import-not-found, unused-ignore]

        traceml_ai.init(mode="auto")
        around = lambda: traceml_ai.trace_step(loop.model)  # noqa: E731
    with whole:
        timed_blocks(loop, options.warmup // BLOCK_STEPS, around)
        gc.collect()
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        blocks = timed_blocks(loop, options.steps // BLOCK_STEPS, around)
        wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.process_time_ns() - cpu_ns
        memory = memory_bytes()
    steps = len(blocks) * BLOCK_STEPS
    found = {
        "blocks_ns": blocks,
        "steps": steps,
        "wall_ns_per_step": wall_ns / steps,
        "process_cpu_ns_per_step": cpu_ns / steps,
        "memory_bytes": memory,
    }
    session = attached_session()
    found["attached"] = session is not None
    if session is not None:
        found["rows"] = session.recorder.rows
    return found


def watch_sampler(options: argparse.Namespace) -> dict[str, Any]:
    """The loop for ``--seconds``; CPU time of the agent's own thread over wall time, early and late, and of each of its
    parts: what is left of the whole is waking up."""
    from hotloop.observe import background as module
    from hotloop.observe.background import FAST_FOR_S

    loop = Loop(options.model, options.width)
    loop.step()
    loop.step()
    session = attached_session()
    background = session.background
    parts: dict[str, list[int]] = {}

    def watch(name: str) -> None:
        original, spent = getattr(background, name), parts.setdefault(name, [0, 0])

        def timed(*args: Any) -> Any:
            start_ns = time.thread_time_ns()
            try:
                return original(*args)
            finally:
                spent[0] += time.thread_time_ns() - start_ns
                spent[1] += 1

        setattr(background, name, timed)

    for name in ("_sample", *module._JOBS_NS):
        watch(name)
    start_ns, marks = time.perf_counter_ns(), []
    rows = session.recorder.rows
    split_s = min(FAST_FOR_S, options.seconds * 0.6)
    for until_s in (split_s, options.seconds):
        began_ns, cpu_ns, steps = time.perf_counter_ns(), background.cpu_ns, session.recorder.rows
        samples = parts["_sample"][1]
        while time.perf_counter_ns() - start_ns < until_s * 1e9:
            loop.step()
        wall_ns = time.perf_counter_ns() - began_ns
        marks.append(
            {
                "until_s": until_s,
                "sampler_ratio": (background.cpu_ns - cpu_ns) / wall_ns,
                "samples": parts["_sample"][1] - samples,
                "step_ns": wall_ns / (session.recorder.rows - steps),
            }
        )
    wall_ns = time.perf_counter_ns() - start_ns
    return {
        "parts": marks,
        "wall_ns": wall_ns,
        "rows": session.recorder.rows - rows,
        "sampler_ns": background.cpu_ns,
        "jobs": {name: {"ns": ns, "runs": runs} for name, (ns, runs) in parts.items()},
    }


def attached_session() -> Any:
    """The agent's session; None when none is attached."""
    agent = sys.modules.get("hotloop.attach.agent")
    return None if agent is None else agent.current_session()


# -- (a) the sum over hooks -------------------------------------------------------------------------------------------


def calls_per_step(loop: Loop, session: Any, steps: int = 20) -> dict[str, float]:
    """How often each wrapper is called in a real step while every module is watched, counted by a profile function."""
    from hotloop.core.recording import FIELD

    counts: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("wrappers.py"):
            factory, _, inside = frame.f_code.co_qualname.partition(".<locals>.wrap.")
            if inside:
                counts[factory] += 1

    forwards = 0
    field = FIELD["forwards"]

    def add_forwards(session: Any, row: list[int]) -> None:
        nonlocal forwards
        forwards += row[field]

    session.subscribe(add_forwards)
    for _ in range(steps):
        if session.module_patch is not None:
            session.module_patch.widen()
        sys.setprofile(count)
        try:
            loop.step()
        finally:
            sys.setprofile(None)
    session.subscribers.remove(add_forwards)
    found = {name: n / steps for name, n in counts.items()}
    found["outermost"] = forwards / steps
    found["nested"] = found["wrap_module_call"] - found["outermost"]
    return found


def measure_hooks(options: argparse.Namespace) -> dict[str, Any]:
    """Cost of each hook around an empty call, on the live session with its file, facts and subscribers."""
    from hotloop.observe import wrappers
    from hotloop.observe.recorder import FORWARD

    loop = Loop(options.model, options.width)
    for _ in range(options.warmup):
        loop.step()
    session = attached_session()
    calls = calls_per_step(loop, session)
    for _ in range(40):
        loop.step()

    x, y = next(loop.batches)
    iterator = iter(loop.loader)
    batch = next(iterator)
    output = loop.model(x)
    loss = loop.criterion(output, y)
    loss.backward()
    loop.optimizer.step()
    submodule = next(loop.model.children())
    backward_arguments = ((loss,), (None,), False, False, ())
    keywords = {"allow_unreachable": True, "accumulate_grad": True}
    clock = time.perf_counter_ns

    def answer_batch(iterator: Any) -> Any:
        return batch

    def answer_output(module: Any, *args: Any, **kwargs: Any) -> Any:
        return output

    def answer_nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def collate(samples: Any) -> Any:
        return batch

    class Fetcher:
        def __init__(self) -> None:
            self.collate_fn: Any = collate

    def answer_fetch(fetcher: Any, index: Any) -> Any:
        return fetcher.collate_fn(index)

    def through_module(module: Any, *args: Any, **kwargs: Any) -> Any:  # as narrowing.py's _call_inherited
        return answer_output(module, *args, **kwargs)

    fetcher, bare = Fetcher(), Fetcher()
    next_ = wrappers.wrap_loader_next(session)(answer_batch)
    fetch = wrappers.wrap_fetcher_fetch(session)(answer_fetch)
    forward = wrappers.wrap_module_call(session)(answer_output)
    narrowed = wrappers.wrap_module_call(session)(through_module)
    backward = wrappers.wrap_run_backward(session)(answer_nothing)
    step = wrappers.wrap_optimizer_step(session)(answer_nothing)
    hollow: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "next": (lambda: next_(iterator), lambda: answer_batch(iterator)),
        "fetch": (lambda: fetch(fetcher, 0), lambda: answer_fetch(bare, 0)),
        "forward": (lambda: forward(loop.model, x), lambda: answer_output(loop.model, x)),
        "forward_narrowed": (lambda: narrowed(loop.model, x), lambda: answer_output(loop.model, x)),
        "forward_loss": (lambda: forward(loop.criterion, output, y), lambda: answer_output(loop.criterion, output, y)),
        "backward": (
            lambda: backward(*backward_arguments, **keywords),
            lambda: answer_nothing(*backward_arguments, **keywords),
        ),
        "step_and_row": (lambda: step(loop.optimizer), lambda: answer_nothing(loop.optimizer)),
    }
    costs: dict[str, list[int]] = {name: [] for name in (*hollow, "nested")}
    bare_costs: dict[str, list[int]] = {name: [] for name in hollow}
    writer = session.writer
    gc_was_on = gc.isenabled()
    gc.disable()  # the lists above would make collections that no training has
    for _ in range(options.steps):
        for name, (hooked, plain) in hollow.items():
            start_ns = clock()
            plain()
            middle_ns = clock()
            hooked()
            end_ns = clock()
            bare_costs[name].append(middle_ns - start_ns)
            costs[name].append(end_ns - middle_ns)
    recorder = session.recorder
    recorder.enter(FORWARD)
    plain_call = min(_repeat(lambda: answer_output(submodule, x)) for _ in range(50))
    nested = min(_repeat(lambda: forward(submodule, x)) for _ in range(50)) - plain_call
    recorder.leave()
    whole_ns = _whole_step_ns(hollow, calls, lambda: forward(submodule, x), recorder, options.steps)
    row = recorder.row[:]
    row_write_ns = min(_time_write(writer, row, session) for _ in range(options.steps))
    if gc_was_on:
        gc.enable()
    found = {
        name: {
            "min_ns": _least_mean(costs[name], bare_costs[name]),
            "median_ns": _median(costs[name]) - _median(bare_costs[name]),
        }
        for name in hollow
    }
    found["nested"] = {"min_ns": nested, "median_ns": nested}
    return {
        "calls_per_step": calls,
        "modules": len(list(loop.model.modules())),
        "hooks": found,
        "whole_step_cpu_ns": whole_ns,
        "row_write_min_ns": row_write_ns,
        "switch_ns": _switch_cost_ns(loop, session) if options.model == "deep" else None,
        "lost_rows": writer.report_losses().lost_rows,
    }


def _whole_step_ns(
    hollow: dict[str, tuple[Callable[[], Any], Callable[[], Any]]],
    calls: dict[str, float],
    nested: Callable[[], Any],
    recorder: Any,
    steps: int,
) -> dict[str, float]:
    """Mean thread CPU time of all hooks of a step around empty calls, work of every so many'th row included."""
    from hotloop.observe.recorder import FORWARD

    order = [hollow[name] for name in ("next", "fetch", "forward", "forward_loss", "backward", "step_and_row")]
    nested_calls = round(calls["nested"])
    start_ns = time.thread_time_ns()
    for _ in range(steps):
        for _, plain in order:
            plain()
    plain_ns = time.thread_time_ns() - start_ns
    start_ns = time.thread_time_ns()
    for _ in range(steps):
        for hooked, _ in order:
            hooked()
    hooked_ns = time.thread_time_ns() - start_ns
    recorder.enter(FORWARD)
    start_ns = time.thread_time_ns()
    for _ in range(nested_calls * 20):
        nested()
    nested_ns = (time.thread_time_ns() - start_ns) / 20
    recorder.leave()
    return {"without_nested": (hooked_ns - plain_ns) / steps, "nested": nested_ns}


def _time_write(writer: Any, row: Any, session: Any) -> int:
    """One row more in the real file; its index goes on, so that the recording stays readable."""
    row[0] = session.recorder.rows
    writer.maintain()  # no training writes so fast that the next segment is not there in time
    start_ns = time.perf_counter_ns()
    writer.write_row(row)
    spent_ns = time.perf_counter_ns() - start_ns
    session.recorder.rows += 1
    return spent_ns


def _least_mean(hooked_ns: list[int], plain_ns: list[int], block: int = 64) -> float:
    """Least mean of blocks of calls, less that of empty calls. Work of every 4th, 16th or 64th row is in it."""

    def least(values: list[int]) -> float:
        return min(sum(values[k : k + block]) for k in range(0, len(values) - block + 1, block)) / block

    return least(hooked_ns) - least(plain_ns)


def _trimmed_mean(values: list[int]) -> float:
    """Mean without the slowest fiftieth, in which the system interrupted; work of every 16th call is in it."""
    kept = sorted(values)[: len(values) - len(values) // 50]
    return sum(kept) / len(kept)


def _repeat(call: Callable[[], Any], times: int = 200) -> float:
    start_ns = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start_ns) / times


def _median(values: list[int]) -> float:
    return float(sorted(values)[len(values) // 2])


def _switch_cost_ns(loop: Loop, session: Any) -> float:
    """What widening and narrowing the patch again costs, with the next step: it empties the caches of types."""
    patch = session.module_patch

    def step_ns(switch: bool) -> int:
        start_ns = time.thread_time_ns()
        if switch:
            patch.widen()
            patch.narrow()
        loop.step()
        return time.thread_time_ns() - start_ns

    steady, switched = [], []
    session.off = True
    for _ in range(60):
        switched.append(step_ns(True))
        for _ in range(3):
            step_ns(False)
        steady.append(step_ns(False))
    session.off = False
    return _median(switched) - _median(steady)


# -- (b) the hooks in their places ------------------------------------------------------------------------------------


def measure_in_place(options: argparse.Namespace) -> dict[str, Any]:
    """Cost of each hook in real steps, caches as cold as torch leaves them: before the original's call and after it.

    The module patch is measured as it is, wide or narrowed, and stays so meanwhile.
    """
    from torch import autograd
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch

    from hotloop.observe import wrappers

    loop = Loop(options.model, options.width)
    for _ in range(options.warmup):
        loop.step()
    session = attached_session()
    clock = time.perf_counter_ns
    depth = 0
    entered_ns, left_ns = [0] * 64, [0] * 64
    spent_ns: dict[str, list[int]] = {}

    def watch(name: str, owner: Any, attribute: str, original: Any, make: Callable[[Any], Any], through: bool) -> None:
        """Put the hook where it is already, with a clock on either side of it and of the call inside."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            level = depth - 1
            entered_ns[level] = clock()
            try:
                return original(*args, **kwargs)
            finally:
                left_ns[level] = clock()

        def passed_on(*args: Any, **kwargs: Any) -> Any:  # as narrowing.py's _call_inherited
            return timed(*args, **kwargs)

        hooked = make(session)(passed_on if through else timed)

        def outer(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            level, depth = depth, depth + 1
            start_ns = clock()
            try:
                return hooked(*args, **kwargs)
            finally:
                end_ns, depth = clock(), level
                label = name
                if name == "forward":
                    label = "forward, nested" if level else "forward, outermost" if args[0] is loop.model else "loss"
                spent = spent_ns.setdefault(label, [0, 0, 0])
                spent[0] += entered_ns[level] - start_ns
                spent[1] += end_ns - left_ns[level]
                spent[2] += 1

        setattr(owner, attribute, outer)

    places: list[tuple[str, Any, str, Callable[[Any], Any]]] = [
        ("next", dataloader._BaseDataLoaderIter, "__next__", wrappers.wrap_loader_next),
        ("fetch", fetch._MapDatasetFetcher, "fetch", wrappers.wrap_fetcher_fetch),
        ("backward", autograd.graph, "_engine_run_backward", wrappers.wrap_run_backward),
        ("backward", autograd, "_engine_run_backward", wrappers.wrap_run_backward),
        ("optimizer step, row and its writing", type(loop.optimizer), "step", wrappers.wrap_optimizer_step),
    ]
    patch, session.module_patch = session.module_patch, None  # nothing else is to switch these meanwhile
    narrowed = () if patch.is_wide else tuple(patch._narrowed)
    places += [("forward", cls, "__call__", wrappers.wrap_module_call) for cls in narrowed or (nn.Module,)]
    installed = [(owner, attribute, vars(owner)[attribute]) for _, owner, attribute, _ in places]

    def run(hooked: bool) -> list[dict[str, list[int]]]:
        for (name, owner, attribute, make), (_, _, present) in zip(places, installed, strict=True):
            is_narrowed = owner in narrowed
            original = nn.Module.__call__ if is_narrowed else present.__wrapped__
            watch(name, owner, attribute, original, make if hooked else _no_hook, is_narrowed and hooked)
        steps: list[dict[str, list[int]]] = []
        for _ in range(options.steps):
            spent_ns.clear()
            loop.step()
            steps.append(dict(spent_ns))
        for owner, attribute, present in installed:
            setattr(owner, attribute, present)
        return steps

    empty, full = run(hooked=False), run(hooked=True)
    session.module_patch = patch
    names = list(dict.fromkeys(name for step in full for name in step))
    nothing = [0, 0, 0]

    def column(steps: list[dict[str, list[int]]], name: str, side: int) -> list[int]:
        return [step.get(name, nothing)[side] for step in steps]

    def sums(steps: list[dict[str, list[int]]]) -> list[int]:
        return [sum(before_ns + after_ns for before_ns, after_ns, _ in step.values()) for step in steps]

    hooks = {}
    for name in names:
        sides = {
            side: (column(full, name, place), column(empty, name, place))
            for place, side in enumerate(("before", "after"))
        }
        hooks[name] = {"calls": sum(column(full, name, 2)) / len(full)} | {
            f"{side}_{key}": what(hooked) - what(bare)
            for side, (hooked, bare) in sides.items()
            for key, what in (("mean_ns", _trimmed_mean), ("min_ns", min))
        }
    return {
        "hooks": hooks,
        "is_wide": not narrowed,
        "sum_mean_ns": _trimmed_mean(sums(full)) - _trimmed_mean(sums(empty)),
        "sum_median_ns": _median(sums(full)) - _median(sums(empty)),
        "sum_min_ns": min(sums(full)) - min(sums(empty)),
        "clock_median_ns": _median(sums(empty)),
        "n": len(full),
    }


def _no_hook(session: Any) -> Callable[[Any], Any]:
    """In the place of a hook: what is measured then is the measuring."""
    return lambda original: original


# -- (c) the same process with the session on and off ----------------------------------------------------------------


def toggle(options: argparse.Namespace) -> dict[str, Any]:
    """Thread CPU time per step of short blocks, hooks on and off in turn; off leaves each wrapper's first line."""
    loop = Loop(options.model, options.width)
    for _ in range(options.warmup):
        loop.step()
    session = attached_session()
    on: list[float] = []
    off: list[float] = []
    block = 8
    for pair in range(options.steps // (2 * block)):
        for state in ((True, False), (False, True))[pair % 2]:
            session.off = not state
            start_ns = time.thread_time_ns()
            for _ in range(block):
                loop.step()
            (on if state else off).append((time.thread_time_ns() - start_ns) / block)
    session.off = False
    from hotloop.observe.overhead import replayed_hooks_ns

    rows = session.recorder.rows
    return {"on_ns": on, "off_ns": off, "rows": rows, "replayed_ns": replayed_hooks_ns(session) / rows}


# -- (d) the same process with sampling from outside on and off ------------------------------------------------------


def time_by_clock(options: argparse.Namespace) -> dict[str, Any]:
    """CPU time per step of short blocks, of the training thread and of the process, and when each block ran.

    Who samples from outside goes by the same clock (CLOCK_MONOTONIC).
    """
    loop = Loop(options.model, options.width)
    for _ in range(options.warmup):
        loop.step()
    blocks: list[tuple[int, int, float, float]] = []
    end_ns = time.monotonic_ns() + int(options.seconds * 1e9)
    block = 8
    while (start_ns := time.monotonic_ns()) < end_ns:
        thread_ns, process_ns = time.thread_time_ns(), time.process_time_ns()
        for _ in range(block):
            loop.step()
        thread_ns, process_ns = time.thread_time_ns() - thread_ns, time.process_time_ns() - process_ns
        blocks.append((start_ns, time.monotonic_ns(), thread_ns / block, process_ns / block))
    return {"blocks": blocks}


MODES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "train": train,
    "hooks": measure_hooks,
    "place": measure_in_place,
    "toggle": toggle,
    "sampler": watch_sampler,
    "clock": time_by_clock,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--model", choices=("mlp", "deep"), default="mlp")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--around", choices=("none", "profiler", "traceml"), default="none")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = MODES[options.mode](options)
    found["torch"] = torch.__version__
    part = options.out + ".part"
    with open(part, "w") as file:
        json.dump(found, file)
    os.replace(part, options.out)


if __name__ == "__main__":
    main()
