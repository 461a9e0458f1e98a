"""keep-activations: what the script checkpoints is kept, and not computed again in backward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hotloop.apply.forecasts import forecast_removal
from hotloop.apply.modules import unwrap
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Stage, Technique

OWN_KEYS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Arguments of checkpoint() that are not handed on to the function."""


class KeepActivations(Technique):
    """
    ## What it does
    Turns the script's calls `torch.utils.checkpoint.checkpoint(function, ...)` into `function(...)`, including those
    from `checkpoint_sequential` and the models of transformers. By API it turns off `gradient_checkpointing` of a
    transformers model.

    ## When it helps
    Memory is far from full. Backward then saves one more forward of the checkpointed parts: with all blocks of a 10
    million parameter transformer checkpointed, the step took 340 instead of 273 ms in float32, 215 instead of 169 ms
    under bf16 (torch 2.13, one CPU core).

    ## When it does not
    Memory would be full. Recomputing kept 46 of 188 MB of the activations of a transformer with six blocks, so expect
    several times the activation memory. Inside compiled code, the compiler decides.

    ## Numerics
    Exact. Resampled if the script passed `preserve_rng_state=False`: its recomputation drew other dropout masks than
    its forward. A reentrant call none of whose inputs needs a gradient stays: its parameters are not trained. Batch
    norm inside a checkpoint counted every batch twice in its running statistics, and now counts it once.
    """

    id = "keep-activations"
    summary = "do not recompute activations that fit in memory"
    numerics = Numerics.EXACT
    stage = Stage.ACTIVATIONS
    treats = ("needless-recompute",)
    conflicts = ("activation-checkpointing",)
    functions = ("torch.utils.checkpoint:checkpoint",)

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        kwargs = dict(call.kwargs)
        function, args = (call.args[0], call.args[1:]) if call.args else (kwargs.pop("function"), ())
        contexts = kwargs.get("context_fn")
        if contexts is not None and not _is_selective(contexts):
            return NotApplicable(why="the call has its own context_fn, which recomputation runs")
        is_reentrant = kwargs.get("use_reentrant") in (None, True)
        if is_reentrant and torch.is_grad_enabled():
            inputs = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
            if not any(one.requires_grad for one in inputs):
                return NotApplicable(why="no input of this reentrant call needs a gradient: it trains no parameters")
        call.function, call.args = function, args
        call.kwargs = {key: value for key, value in kwargs.items() if key not in OWN_KEYS}
        if kwargs.get("preserve_rng_state") is False:
            return Applied(
                text="checkpoint() calls its function directly; preserve_rng_state=False drew different masks before",
                numerics=Numerics.RESAMPLED,
            )
        return Applied(text="checkpoint() calls its function directly")

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return None
        inner = unwrap(model)
        if not getattr(inner, "is_gradient_checkpointing", False):
            return NotApplicable(why="the API supports only the switch of Transformers models, which is off")
        use_cache = getattr(getattr(inner, "config", None), "use_cache", None)
        inner.gradient_checkpointing_disable()
        return Applied(
            text="gradient_checkpointing_disable(); config.use_cache stays {use_cache}",
            values={"use_cache": use_cache},
            undo=lambda: inner.gradient_checkpointing_enable({"use_reentrant": False}),
        )

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """The module calls inside backward, where these were timed: on the host, which a device may hide."""
        return forecast_removal(analysis, analysis.lead.mean["recompute_ns"], is_hidden=analysis.accelerator)


def _is_selective(contexts: Any) -> bool:
    """torch's own policy for what to keep, or torch's default."""
    from torch.utils import checkpoint

    function = inspect.unwrap(getattr(contexts, "func", contexts))
    return function in (checkpoint.create_selective_checkpoint_contexts, checkpoint.noop_context_fn)
