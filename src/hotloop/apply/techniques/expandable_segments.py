"""expandable-segments: device memory in ranges that grow, so that blocks of other sizes need no new segments."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, MemorySaving, NotApplicable, Stage, Technique

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch 2.13 knows both names; older ones know the second only, which is therefore set where neither is."""
OPTION = "expandable_segments"


class ExpandableSegments(Technique):
    """
    ## What it does
    Adds `expandable_segments:True` to PYTORCH_CUDA_ALLOC_CONF before the training starts (or to PYTORCH_ALLOC_CONF if
    that is set): torch's CUDA allocator then grows a few large address ranges instead of asking the driver for a new
    segment whenever no free block is large enough. The rest of the variable stays.

    ## When it helps
    Batches of many sizes, where much memory is reserved and little allocated, allocations fail and are retried
    (`allocator-thrash`), or the training runs out of memory although enough is free. Not measured here yet.

    ## When it does not
    CPU training: nothing reads the variable. Shapes that repeat: there is nothing to gain. `backend:cudaMallocAsync`
    does not support it. If the variable already mentions expandable segments, that stays. By API it comes too late: the
    allocator reads it once.

    ## Numerics
    Exact: other addresses, the same values.
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
