"""thread-count: as many compute threads as there are cores for this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.sources import TorchCall
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Setting, Stage, Technique

VARIABLE = "OMP_NUM_THREADS"


class ThreadCount(Technique):
    """
    ## What it does
    Calls `torch.set_num_threads(torch_threads)` before the script's own code, and sets OMP_NUM_THREADS for the other
    libraries of the process, unless it is set. A number in the strategy overrides OMP_NUM_THREADS. Without one, hotloop
    divides the cores of the process (the smaller of affinity and the container's quota) by the ranks of the host, and
    leaves what OMP_NUM_THREADS chose.

    `torch.set_num_threads` in the script stays, and the report shows it. With `override = true`, every such call sets
    the strategy's number instead; in a DataLoader worker (its `worker_init_fn`) it leaves the one thread that torch
    gives a worker.

    ## When it helps
    More compute threads than cores: the threads of an operator meet at a barrier, and some wait for a core while the
    others spin. The rule `oversubscription` has a probe that times this model's own operators with both numbers. In
    containers, torch counts the cores of the host, not those of the quota. torchrun sets one thread per rank if nothing
    is set, which leaves cores idle in CPU training.

    ## When it does not
    Trainings on an accelerator hardly use these threads. Small operators run on one thread whatever the number.

    ## Numerics
    Reordered: sums are split over another number of threads.
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
