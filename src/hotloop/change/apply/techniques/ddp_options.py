"""ddp-buckets and ddp-settings: how much DistributedDataParallel sends at a time, and which of its features are turned
off."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hotloop.change.apply.forecasts import forecast_removal
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class DdpBuckets(Technique):
    """
    ## What it does
    Sets `bucket_cap_mb`, the size of the buckets in which DistributedDataParallel sends gradients.

    ## When it helps
    It helps with many small buckets: each all-reduce costs its latency whatever its size, 0.04 ms with NCCL on one host
    and about 0.25 ms with gloo (rules of thumb). A smaller cap helps if one huge bucket leaves nothing to overlap: with
    25 million parameters over a link of 1 Gbit/s, a step took 1857 ms with 1 MiB and 2701 ms with 200 MiB (two gloo
    ranks, minimum of three to five, on a busy machine, so only the direction is certain).

    ## When it does not
    It saves nothing if communication already overlaps with backward. hotloop leaves a list of sizes
    (`bucket_cap_mb_list`) alone. A size that the script chose stays unless the strategy sets `override = true`.

    ## Numerics
    Reordered: with different buckets, the ranks' gradients may be added in another order. With two ranks, the bits are
    equal.
    """

    id = "ddp-buckets"
    summary = "send gradients in buckets of a different size"
    numerics = Numerics.REORDERED
    stage = Stage.PARALLEL
    source = Arguments(names=("bucket_cap_mb",))
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


OTHER_KEYS = ("gradient_as_bucket_view", "static_graph")


class DdpSettings(Technique):
    """
    ## What it does
    Turns off `find_unused_parameters` once hotloop has seen that the scan finds nothing: for `watch_steps` backwards,
    every parameter must get its gradient on every rank, and the model's forward must not contain a branch that could
    skip a part later. Then, between two steps, DDP gets a new reducer without the scan. On request it also sets
    `gradient_as_bucket_view` (gradients are stored in the buffers from which they are sent) and `static_graph`.

    ## When it helps
    The scan walks the autograd graph on the host before every backward, and exchanges a map of the used parameters,
    which matters in models with many small operations. `gradient_as_bucket_view` saves a copy of all gradients and the
    memory of that copy. With 25 million parameters over 1 Gbit/s, a step took 2117 ms with both settings and 2169 ms
    without them; the difference is not larger than the noise (two gloo ranks, on a busy machine).

    ## When it does not
    It does not apply to models that skip parts, or to models whose forward has branches, because hotloop cannot know
    that every part is always used. If you know that, set `assume_all_used = true`; if a parameter is skipped
    nevertheless, torch stops training or a rank hangs. `static_graph = true` promises torch that the graph never
    changes.

    ## Numerics
    Reordered: without the scan, DDP may regroup its buckets and add the ranks' gradients in another order. With two
    ranks, the bits are equal.
    """

    id = "ddp-settings"
    summary = "change DistributedDataParallel options"
    numerics = Numerics.REORDERED
    numerics_note = ", often exact"
    stage = Stage.PARALLEL
    source = Arguments(names=("find_unused_parameters", "static_graph", "gradient_as_bucket_view"))
    treats = ("unused-parameter-scan",)
    watch_steps = True
    settings = (
        Setting(
            name="find_unused_parameters",
            kind=bool,
            default=False,
            help="false: turned off if no parameter is unused; true: left as in the script",
        ),
        Setting(
            name="watch_steps",
            kind=int,
            default=8,
            help="number of backwards in which every parameter must first get its gradient",
            least=2,
            most=10_000,
        ),
        Setting(
            name="assume_all_used",
            kind=bool,
            default=False,
            help="set this if no branch of the model skips a parameter",
        ),
        Setting(name="gradient_as_bucket_view", kind=bool, default=None, help="default: as in the script"),
        Setting(name="static_graph", kind=bool, default=None, help="default: as in the script"),
    )

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """The scan's own time, where every parameter is used; None for the other settings, which nothing measured."""
        ddp, rank = analysis.lead.ddp, analysis.lead
        if ddp is None or not ddp.find_unused_parameters or ddp.scan_ns is None or ddp.unused_tensors != 0:
            return None
        if settings.get("find_unused_parameters"):
            return None
        return forecast_removal(analysis, ddp.scan_ns * rank.mean["forwards"], is_hidden=analysis.accelerator)

    def change_ddp(self, arguments: dict[str, Any], settings: Mapping[str, Value], context: Context) -> Effect:
        values: dict[str, Value] = {}
        for key in OTHER_KEYS:
            wanted = settings[key]
            if wanted is None:
                continue
            if key in arguments and arguments[key] != wanted:
                return NotApplicable(why=f"the script sets {key}={arguments[key]}")
            if arguments.get(key, False) != wanted:
                arguments[key] = wanted
                values[key] = wanted
        text = ", ".join(f"{key}={{{key}}}" for key in values)
        return Applied(text=text, values=values) if values else None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.branches import find_branch
        from hotloop.change.apply.ddp import UsedParameters, find_ddp, why_special

        if settings["find_unused_parameters"]:
            return None
        found = find_ddp(model)
        if not found:
            return NotApplicable(why="the model is not a DistributedDataParallel")
        for ddp in found:
            if not ddp.find_unused_parameters:
                return NotApplicable(why="find_unused_parameters is already off")
            if ddp.static_graph:
                return NotApplicable(why="static_graph already avoids the scan")
            why = why_special(ddp)
            if why is not None:
                return NotApplicable(why=why)
            branch = None if settings["assume_all_used"] else find_branch(ddp.module)
            if branch is not None:
                return NotApplicable(
                    why=f"a parameter may become unused later: {branch}; if that cannot happen, set assume_all_used = "
                    "true"
                )
        steps = settings["watch_steps"]
        assert isinstance(steps, int)
        for ddp in found:
            UsedParameters(ddp, steps, partial(context.report, self.id))
        return None
