"""ddp-buckets: how many bytes of gradients DDP sends at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class DdpBuckets(Technique):
    """
    ## What it does
    Sets `bucket_cap_mb`, the size of the buckets in which DistributedDataParallel sends gradients.

    ## When it helps
    Many small buckets: each all-reduce costs its latency, 0.04 ms with NCCL on one host and about 0.25 ms with gloo
    (rules of thumb), whatever its size. A smaller cap helps if one huge bucket leaves nothing to overlap: 25 million
    parameters over a link of 1 Gbit/s took 1857 ms a step with 1 MiB and 2701 ms with 200 MiB (two gloo ranks, least of
    three to five, on a busy machine: only the direction is sure).

    ## When it does not
    Communication that backward already hides. A list of sizes (`bucket_cap_mb_list`), which it leaves alone. A size
    that the script chose stays, unless the strategy sets `override = true`.

    ## Numerics
    Reordered: other buckets may add the ranks' gradients in another order. Two ranks give equal bits.
    """

    id = "ddp-buckets"
    summary = "send gradients in buckets of a different size"
    numerics = Numerics.REORDERED
    stage = Stage.PARALLEL
    source = Arguments(of="DistributedDataParallel", names=("bucket_cap_mb",), needs="bucket_cap_mb")
    treats = ("small-buckets", "exposed-communication")
    settings = (
        Setting(
            name="bucket_cap_mb",
            kind=float,
            default=25.0,
            help="bucket size in MiB; 25 is torch's default",
            least=0.1,
            most=4096,
        ),
    )

    def change_ddp(self, arguments: dict[str, Any], settings: Mapping[str, Value], context: Context) -> Effect:
        import torch.distributed as dist

        if dist.get_world_size(arguments.get("process_group")) == 1:
            return NotApplicable(why="there is only one rank, so nothing is sent")
        if arguments.get("bucket_cap_mb_list"):
            return NotApplicable(why=f"the script sets bucket_cap_mb_list={arguments['bucket_cap_mb_list']}")
        wanted = settings["bucket_cap_mb"]
        before = arguments.get("bucket_cap_mb")
        if before == wanted or (before is None and wanted == 25):
            return NotApplicable(why=f"bucket_cap_mb is already {25 if before is None else before:g}")
        # Accelerate passes torch's 25 where the script says nothing.
        explicit = None if before in (None, 25) else f"bucket_cap_mb={before:g}"
        if explicit is not None and not context.strategy.overrides(self.id):
            return NotApplicable(why=f"the script sets {explicit}", explicit=explicit)
        # torch's own default also sends a small first piece early; that is lost with any explicit size, 25 included.
        arguments["bucket_cap_mb"] = None if wanted == 25 else wanted
        was = "torch's" if explicit is None else "the script's"
        return Applied(
            text=f"bucket_cap_mb {{bucket_cap_mb:g}} instead of {was} {{before:g}}",
            values={"bucket_cap_mb": wanted, "before": 25 if explicit is None else before},
            numerics=two_ranks(arguments),
            explicit=explicit,
        )


def two_ranks(arguments: Mapping[str, Any]) -> Numerics | None:
    """A sum of two has one order."""
    import torch.distributed as dist

    return Numerics.EXACT if dist.get_world_size(arguments.get("process_group")) == 2 else None
