"""matmul-precision, thread-count, expandable-segments and gc-freeze: settings of the entire process."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Safety, Saving, Value, saving_of_removal
from hotloop.core.sources import TorchCall
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import (
    Applied,
    Call,
    Context,
    Effect,
    MemorySaving,
    NotApplicable,
    Setting,
    Stage,
    Technique,
)

FULL = "highest"


class MatmulPrecision(Technique):
    """
    ## What it does
    Calls `torch.set_float32_matmul_precision(precision)` before the script's own code runs. The setting applies to the
    entire process. On NVIDIA GPUs from Ampere on, 'high' and 'medium' let float32 matrix products use TF32 units. On a
    CPU, 'medium' lets oneDNN compute them in bfloat16. Without a `precision`, hotloop sets 'high', and changes to
    'medium' once it sees the model on a CPU. If the script itself sets the precision, that value stays.

    ## When it helps
    It helps float32 models that are dominated by matrix products. A 10 million parameter transformer went from 273 to
    197 CPU-ms per step on a core with AMX, with nothing else changed (torch 2.13, n = 7, interleaved).

    ## When it does not
    Under autocast, the products are in bfloat16 or float16 anyway. GPUs before Ampere and CPUs without bfloat16 units
    compute as before. Convolutions on CUDA already use TF32 (`torch.backends.cudnn.allow_tf32`). Matrix products
    outside the model, such as a decomposition of the data before training, lose bits too.

    ## Numerics
    Lossy: the inputs of products are rounded to 10 bits of mantissa (TF32) or 7 bits (bfloat16); sums stay float32.
    """

    id = "matmul-precision"
    summary = "compute float32 matrix products with fewer bits (TF32 or bfloat16)"
    numerics = Numerics.LOSSY
    stage = Stage.RUNTIME
    is_probed = True
    source = TorchCall(function="set_float32_matmul_precision", value="precision")
    treats = ("full-precision",)
    settings = (
        Setting(
            name="precision",
            kind=str,
            default=None,
            choices=("high", "medium"),
            help="torch.set_float32_matmul_precision (default: 'medium' on a CPU, else 'high')",
        ),
    )

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        before = torch.get_float32_matmul_precision()
        if before != FULL:
            return NotApplicable(why=f"float32 matrix products already have precision {before!r}")
        wanted = str(settings["precision"] or "high")
        torch.set_float32_matmul_precision(wanted)
        context.memory(self.id)["set"] = wanted

        def undo() -> None:
            if torch.get_float32_matmul_precision() == context.memory(self.id)["set"]:
                torch.set_float32_matmul_precision(before)

        values: dict[str, Value] = {"precision": wanted, "before": before}
        text = "set_float32_matmul_precision({precision!r}) instead of {before!r}"
        return Applied(text=text, values=values, undo=undo)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        memory = context.memory(self.id)
        if "set" not in memory or memory.get("looked"):
            return None
        memory["looked"] = True
        now = torch.get_float32_matmul_precision()
        if now != memory["set"]:
            return NotApplicable(why=f"the script sets set_float32_matmul_precision({now!r})")
        device = next(model.parameters()).device
        if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
            torch.set_float32_matmul_precision(FULL)
            return NotApplicable(why=f"{torch.cuda.get_device_name(device)} has no TF32 units; reverted")
        if device.type == "cpu" and settings["precision"] is None:
            memory["set"] = "medium"
            torch.set_float32_matmul_precision("medium")
            text = "set_float32_matmul_precision({precision!r}): the model is on the CPU"
            return Applied(text=text, values={"precision": "medium"})
        return None


VARIABLE = "OMP_NUM_THREADS"


class ThreadCount(Technique):
    """
    ## What it does
    Calls `torch.set_num_threads(torch_threads)` before the script's own code runs, and sets OMP_NUM_THREADS for the
    other libraries of the process, unless the variable is already set. A number in the strategy overrides
    OMP_NUM_THREADS. Without a number, hotloop divides the number of cores of the process (the CPU affinity or the
    container's quota, whichever is smaller) by the number of ranks on the host. If OMP_NUM_THREADS is set, hotloop
    keeps that number.

    A call of `torch.set_num_threads` in the script stays in effect, and the report shows it. With `override = true`,
    every such call sets the strategy's number instead. In a DataLoader worker (in its `worker_init_fn`), the call then
    keeps the single thread that torch gives a worker.

    ## When it helps
    It helps if there are more compute threads than cores: the threads of an operator meet at a barrier, and some wait
    for a core while the others spin. The rule `oversubscription` has a probe that times this model's own operators with
    both numbers of threads. In containers, torch counts the cores of the host, not those in the quota. torchrun sets
    one thread per rank unless OMP_NUM_THREADS is set, which leaves cores idle in CPU training.

    ## When it does not
    Training on an accelerator hardly uses these threads. Small operators run on one thread, whatever the number of
    threads.

    ## Numerics
    Reordered: sums are split over a different number of threads.
    """

    id = "thread-count"
    summary = "use as many compute threads as this process has cores"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.RUNTIME
    is_probed = True
    source = TorchCall(function="set_num_threads", value="torch_threads")
    treats = ("oversubscription",)
    functions = ("torch:set_num_threads",)
    settings = (
        Setting(
            name="torch_threads",
            kind=int,
            default=None,
            least=1,
            most=4096,
            help="compute threads per process (default: its cores divided by the host's ranks)",
        ),
    )

    def set_environment(
        self, settings: Mapping[str, Value], environment: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Effect]:
        named = settings["torch_threads"]
        if named is None or VARIABLE in environment:  # the ranks of each host are known to the processes only
            return {}, None
        return {VARIABLE: str(named)}, Applied(text=f"{VARIABLE}={{torch_threads}}", values={"torch_threads": named})

    def start(self, settings: Mapping[str, Any], context: Context) -> Effect:
        import os

        import torch

        named = settings["torch_threads"]
        wanted = int(named) if named is not None else max(1, context.cores // max(1, context.local_world_size))
        before = torch.get_num_threads()
        chosen = os.environ.get(VARIABLE)
        if named is None and chosen:
            return NotApplicable(why=f"{VARIABLE}={chosen} is set (set torch_threads to replace it)")
        memory = context.memory(self.id)
        memory["wanted"] = wanted
        if before == wanted and chosen == str(wanted):
            return Applied(text=f"{_threads(wanted)}, as set by {VARIABLE}", values={"torch_threads": wanted})
        if before == wanted:
            memory["as_it_was"] = True
            return None
        torch.set_num_threads(wanted)
        source = f" of {VARIABLE}" if chosen == str(before) else ""
        return Applied(
            text=f"{_threads(wanted)} instead of {{before}}{source}, on {{cores}} cores for {{ranks}} ranks",
            values={
                "torch_threads": wanted,
                "before": before,
                "cores": context.cores,
                "ranks": context.local_world_size,
            },
            undo=lambda: torch.set_num_threads(before),
        )

    def change_call(self, call: Call, settings: Mapping[str, Any], context: Context) -> Effect:
        from multiprocessing import current_process

        wanted = context.memory(self.id).get("wanted")
        asked = call.args[0] if call.args else None
        if wanted is None or not isinstance(asked, int) or call.caller.startswith(("torch.", "hotloop.")):
            return None
        wanted = 1 if current_process().daemon else wanted  # what torch gives a DataLoader's worker
        if asked == wanted:
            return None
        explicit = f"set_num_threads({asked})"
        if not context.strategy.overrides(self.id):
            why = f"the script sets {_threads(asked)} (set override = true to replace it)"
            return NotApplicable(why=why, explicit=explicit)
        call.args = (wanted,)
        text = f"{_threads(wanted)} instead of the script's {{before}}"
        return Applied(text=text, values={"torch_threads": wanted, "before": asked}, explicit=explicit)

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        import torch

        memory, now = context.memory(self.id), torch.get_num_threads()
        is_same = memory.pop("as_it_was", False) and now == memory["wanted"]
        return NotApplicable(why=f"{_threads(now)} already") if is_same else None


def _threads(count: int) -> str:
    return f"{count} thread" + "s" * (count != 1)


VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch 2.13 knows both names; older ones know the second only, which is therefore set where neither is."""
OPTION = "expandable_segments"


class ExpandableSegments(Technique):
    """
    ## What it does
    Adds `expandable_segments:True` to PYTORCH_CUDA_ALLOC_CONF before the training process starts (or to
    PYTORCH_ALLOC_CONF if that variable is set): torch's CUDA allocator then grows a few large address ranges instead of
    asking the driver for a new segment whenever no free block is large enough. The rest of the variable's value stays.

    ## When it helps
    It helps with batches of many sizes if much memory is reserved but little is allocated, if allocations fail and are
    retried (`allocator-thrash`), or if the run runs out of memory although enough memory is free. It has not been
    measured yet.

    ## When it does not
    In CPU training, nothing reads the variable. If shapes repeat, there is nothing to gain. `backend:cudaMallocAsync`
    does not support expandable segments. If the variable already mentions them, hotloop leaves it alone. The API cannot
    apply this technique, because the allocator reads the variable only once, at the start.

    ## Numerics
    Exact: addresses change, but the values stay the same.
    """

    id = "expandable-segments"
    summary = (
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, so that blocks of different sizes need no new segments"
    )
    numerics = Numerics.EXACT
    stage = Stage.RUNTIME
    memory = MemorySaving(what="memory reserved in blocks too small to use", needs="an accelerator")
    treats = ("allocator-thrash", "memory-pressure")

    def set_environment(
        self, settings: Mapping[str, Value], environment: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Effect]:
        name = next((one for one in VARIABLES if environment.get(one)), VARIABLES[-1])
        present = environment.get(name, "")
        if re.search(rf"\b{OPTION}\s*:", present):
            return {}, NotApplicable(why=f"{name}={present} is already set")
        if "cudaMallocAsync" in present:
            return {}, NotApplicable(why=f"{name}={present}: cudaMallocAsync does not support expandable segments")
        value = f"{present},{OPTION}:True" if present else f"{OPTION}:True"
        return {name: value}, Applied(text="{name}={value}", values={"name": name, "value": value})

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        if torch.version.cuda is None:
            return NotApplicable(why="this torch build has no CUDA, so the variable has no effect")
        if not context.from_outside:
            return NotApplicable(
                why="the allocator reads its variable once at the start; use hotloop run, or export it before the start"
            )
        return None


YOUNG_GENERATION = 1
"""Collections of this generation and younger ones leave alone what has survived two of them."""


class GcFreeze(Technique):
    """
    ## What it does
    After `warmup_steps` steps, collects garbage once and calls `gc.freeze()`: later collections skip everything that is
    alive then (dataset, model, libraries). With `remove_explicit`, a `gc.collect()` in the script collects only young
    objects, if it is called through the module.

    ## When it helps
    It helps with datasets that are held as Python objects: each full collection visits every object and frees next to
    nothing. With 100,000 small objects in a list, a full collection takes 85 ms, and less than 0.1 ms once they are
    frozen (Python 3.11 on one core of an AMD EPYC, minimum of 7).

    ## When it does not
    If frozen objects form reference cycles that become garbage later, they are never freed. If a script
    itself freezes objects, its own setting stays.

    ## Numerics
    Exact: no computed number changes. Only code that relies on finalizers running early would notice.
    """

    id = "gc-freeze"
    summary = "stop Python's garbage collector from scanning long-lived objects"
    numerics = Numerics.EXACT
    stage = Stage.LOOP
    treats = ("gc-pause",)
    watch_steps = True
    settings = (
        Setting(name="freeze", kind=bool, default=True, help="call gc.freeze() after the warm-up"),
        Setting(name="warmup_steps", kind=int, default=3, least=1, most=1_000_000, help="steps before freezing"),
        Setting(
            name="remove_explicit",
            kind=bool,
            default=False,
            help="make the script's gc.collect() collect only young objects",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if not settings["freeze"] and not settings["remove_explicit"]:
            return "freeze is false and remove_explicit is not set, so there is nothing to do"
        return None

    def start(self, settings: Mapping[str, Value], context: Context) -> Effect:
        memory = context.memory(self.id)
        memory.update(settings=dict(settings), steps=0)
        return None

    def after_step(self, context: Context) -> None:
        memory = context.memory(self.id)
        memory["steps"] += 1
        settings = memory["settings"]
        if memory["steps"] == settings["warmup_steps"]:
            context.report(self.id, _begin(settings))

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        rank = analysis.lead
        pause_ns = rank.mean.get("gc_ns", -1.0)
        if pause_ns < 0 or rank.step_mean_ns <= 0:
            return None
        cost = min(1.0, pause_ns / rank.step_mean_ns)
        return saving_of_removal(cost)


def _begin(settings: Mapping[str, Any]) -> Effect:
    """Everything that happens after the warm-up."""
    collect: Callable[..., int] = gc.collect
    done, undone = [], []
    was_frozen = gc.get_freeze_count()
    if settings["freeze"] and not was_frozen:
        collect()
        gc.freeze()
        done.append("{frozen} objects frozen")
        undone.append(gc.unfreeze)
    if settings["remove_explicit"]:

        def collect_young(generation: int = 2) -> int:
            return collect(min(generation, YOUNG_GENERATION))

        gc.collect = collect_young
        done.append("the script's gc.collect() collects only young objects")
        undone.append(lambda: setattr(gc, "collect", collect))
    if not done:
        return NotApplicable(why=f"the script already froze {was_frozen} objects")

    def undo() -> None:
        for one in undone:
            one()

    return Applied(
        text="after {warmup_steps} steps: " + ", ".join(done),
        values={"warmup_steps": settings["warmup_steps"], "frozen": gc.get_freeze_count()},
        undo=undo,
    )
