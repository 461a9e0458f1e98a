"""ddp-settings: DistributedDataParallel without the scan for unused parameters, without copies of the gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hotloop.apply.forecasts import forecast_removal
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

OTHER_KEYS = ("gradient_as_bucket_view", "static_graph")


class DdpSettings(Technique):
    """
    ## What it does
    Turns off `find_unused_parameters` once it has seen that the scan finds nothing: for `watch_steps` backwards every
    parameter gets its gradient on every rank, and no forward of the model has a branch that could skip a part later.
    Then, between two steps, DDP gets a new reducer without the scan. On request it sets `gradient_as_bucket_view`
    (gradients live where they are sent from) and `static_graph`.

    ## When it helps
    The scan walks the autograd graph on the host before every backward, and exchanges a map of what was used, which
    matters in models of many small operations. `gradient_as_bucket_view` saves a copy of all gradients, as much memory
    as they take. Set together at 25 million parameters over 1 Gbit/s, view and static graph made no difference beyond
    noise (2117 against 2169 ms, two gloo ranks, on a busy machine).

    ## When it does not
    Models that do skip parts, and models whose forward has branches: hotloop cannot tell that all are always taken. Set
    `assume_all_used = true` if you know it; if a parameter is skipped all the same, torch stops the training or a rank
    hangs. `static_graph = true` promises torch that the graph never changes.

    ## Numerics
    Reordered: without the scan DDP may regroup its buckets, and add the ranks' gradients in another order. Two ranks
    give equal bits.
    """

    id = "ddp-settings"
    summary = "change options of DistributedDataParallel"
    numerics = Numerics.REORDERED
    numerics_note = ", often exact"
    stage = Stage.PARALLEL
    source = Arguments(
        of="DistributedDataParallel", names=("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    )
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
            help="set it if no branch of the model skips a parameter",
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
        from hotloop.apply.branches import find_branch
        from hotloop.apply.ddp import find_ddp, why_special

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
            _Watch(ddp, steps, partial(context.report, self.id))
        return None


class _Watch:
    """Counts which parameters get gradients, until it can decide. All ranks decide at the same forward."""

    def __init__(self, ddp: Any, steps: int, emit: Callable[[Effect], None]) -> None:
        from hotloop.apply.ddp import reduced_parameters
        from hotloop.apply.forward import wrap_forward

        self._ddp = ddp
        self._steps = steps
        self._emit = emit
        self._count = 0
        self._fired: set[int] = set()
        self._parameters = reduced_parameters(ddp)
        self._missing: int | None = None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._got, index))
            for index, parameter in enumerate(self._parameters)
        ]
        self._unwrap = wrap_forward(ddp, self._around)

    def _got(self, index: int, parameter: Any) -> None:
        self._fired.add(index)

    def _around(self, call: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if self._ddp is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._before_forward()
        return call(*args, **kwargs)

    def _before_forward(self) -> None:
        if not self._fired:
            return
        self._count += 1
        if len(self._fired) < len(self._parameters) and self._missing is None:
            self._missing = next(i for i in range(len(self._parameters)) if i not in self._fired)
        self._fired.clear()
        if self._count >= self._steps:
            self._decide()

    def _decide(self) -> None:
        from hotloop.apply.ddp import agree, rebuild_reducer, why_special

        ddp, self._ddp = self._ddp, None
        for handle in self._handles:
            handle.remove()
        self._unwrap()
        special = why_special(ddp)
        if ddp._join_config.enable:  # ranks that have run out of data would not take part
            self._emit(NotApplicable(why=str(special)))
            return
        usable = special is None and ddp.find_unused_parameters
        (least, _), (all_used, _), (_, ranks) = agree(ddp, [int(usable), int(self._missing is None), 1])
        if not all_used:
            which = next((name for name, p in ddp.module.named_parameters() if self._is_missing(p)), "one")
            where = "on another rank" if self._missing is None else f"({which})"
            self._emit(NotApplicable(why=f"a parameter got no gradient in the first {self._count} backwards {where}"))
            return
        if not least or not ranks:
            self._emit(NotApplicable(why=special or "the script changed DDP's settings during training"))
            return
        ddp.find_unused_parameters = False
        rebuild_reducer(ddp)
        text = (
            "find_unused_parameters is off from backward {backward} on: all {parameters} parameters got their "
            "gradients in the {watched} backwards before, on all ranks"
        )
        values = {"backward": self._count + 1, "parameters": len(self._parameters), "watched": self._count}
        import torch.distributed as dist

        two = dist.get_world_size(ddp.process_group) <= 2
        self._emit(Applied(text=text, values=values, numerics=Numerics.EXACT if two else None))

    def _is_missing(self, parameter: Any) -> bool:
        return self._missing is not None and parameter is self._parameters[self._missing]
