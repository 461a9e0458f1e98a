"""activation-checkpointing and keep-activations: which activations backward computes again, and which are kept for
it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from hotloop.change.apply.compiling import set_option
from hotloop.change.apply.forecasts import forecast_removal
from hotloop.change.apply.modules import (
    find_blocks,
    find_buffer_changer,
    find_compilation,
    find_replication,
    is_inside_compiled_function,
    unwrap,
)
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import (
    Applied,
    Call,
    Context,
    Effect,
    MemoryForm,
    MemorySaving,
    NotApplicable,
    Setting,
    Stage,
    Technique,
)


class ActivationCheckpointing(Technique):
    """
    ## What it does
    Keeps only the inputs of each repeated block and recomputes the rest in backward (non-reentrant, random numbers
    restored). `policy = "matmuls"` keeps the results of matrix products, convolutions and attention, and recomputes the
    remaining, cheap operators. `budget` is the share of the blocks that keep their activations: the others are
    recomputed, early ones first, because the activations of later blocks are free again by the time backward reaches
    the early ones. In a compiled model, the compiler chooses which activations to keep. If all blocks are recomputed, a
    transformers model uses its own switch; `use_cache` is always off while the model trains.

    ## When it helps
    It helps if memory is full and a larger batch or model has to fit. Six transformer blocks kept 46 of 188 MB of
    activations. For a transformer with four blocks, budgets of 0.75, 0.5 and 0.25 kept 76, 50 and 29 % of the
    activations; in the compiled model, where torch chooses, they kept 62, 51 and 26 % (torch 2.13, CPU).

    ## When it does not
    It never makes a step faster by itself: recomputing all blocks of a 10 million parameter transformer took 25 % more
    time in float32 (340 instead of 273 ms). Blocks that change buffers (batch norm) or their arguments, or draw Python
    random numbers, would do so twice, so hotloop leaves them alone, as well as a model that already uses checkpointing
    and a model in nn.DataParallel on several GPUs. A budget counts blocks: if blocks differ in size, or if many
    activations are kept outside of blocks, the share of activations that is kept differs from the budget.

    ## Numerics
    Exact: the same operators run again with the same random numbers. A compiled model may be fused differently.
    """

    id = "activation-checkpointing"
    summary = "keep fewer activations and recompute them in backward"
    effort = "medium"
    numerics = Numerics.EXACT
    stage = Stage.ACTIVATIONS
    memory = MemorySaving(
        what="activations except the inputs of blocks",
        forms=(
            MemoryForm(),
            MemoryForm(label="keeps matmuls", settings={"policy": "matmuls"}),
            MemoryForm(label="half", settings={"budget": 0.5}),
        ),
        turn=0,
    )
    treats = ("memory-pressure",)
    conflicts = ("keep-activations",)
    settings = (
        Setting(
            name="policy", kind=str, default="all", choices=("all", "matmuls"), help="what to recompute in a block"
        ),
        Setting(name="budget", kind=float, default=0.0, least=0.0, most=1.0, help="fraction of activations to keep"),
        Setting(name="block", kind=str, default=None, help="class of the blocks (default: the repeated class)"),
    )
    functions = ("torch.utils.checkpoint:checkpoint",)

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if settings["budget"] == 1.0:
            return "budget is 1.0, which keeps everything; remove the technique"
        return None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.recompute import Recomputation

        inner, policy = unwrap(model), str(settings["policy"])
        budget = float(settings["budget"])  # type: ignore[arg-type]
        block = None if settings["block"] is None else str(settings["block"])
        memory = context.memory(self.id)
        if memory.get("script_checkpoints"):
            return NotApplicable(why=memory["script_checkpoints"])
        compiled = find_compilation(model) or ("compiled" if is_inside_compiled_function() else None)
        compile_chosen = context.strategy.get("compile-model")
        if compiled is not None or (compile_chosen and not compile_chosen.settings.get("regional") and budget > 0):
            if budget > 0 and policy == "all" and block is None:
                return _set_compiler_budget(budget)
            if compiled is not None:
                return NotApplicable(why="the script compiles the model, which needs a budget (such as budget = 0.5)")
        if getattr(inner, "is_gradient_checkpointing", False):
            return NotApplicable(why="the script already enables gradient_checkpointing")
        plain = policy == "all" and budget == 0 and block is None
        if plain and getattr(inner, "supports_gradient_checkpointing", False):
            switched = _switch_transformers(inner)
            memory["transformers"] = isinstance(switched, Applied)
            return switched
        replicated = find_replication(model)
        if replicated is not None:
            return NotApplicable(why=replicated)
        blocks = find_blocks(inner, block)
        if not blocks:
            named = f"no module of class {block}" if block else "no class of modules that it repeats"
            return NotApplicable(why=f"the model has {named}, so there are no blocks to recompute")
        for one in blocks:
            changer = find_buffer_changer(one)
            if changer is not None:
                return NotApplicable(
                    why=f"{type(one).__name__} contains {changer}, which would count every batch twice"
                )
        restore_caches, also = _switch_caches_off(inner)

        def refuse(why: str) -> None:
            restore_caches()
            context.report(self.id, NotApplicable(why=why))

        def take_back() -> None:
            recomputation.undo()
            restore_caches()

        count = max(1, math.ceil((1.0 - budget) * len(blocks)))
        recomputation = Recomputation(blocks[:count], policy, refuse)
        kept = "all except their inputs" if policy == "all" else "all except matrix products and attention"
        values: dict[str, Value] = {"recomputed": count, "blocks": len(blocks)}
        text = f"{{recomputed}} of {{blocks}} blocks of {type(blocks[0]).__name__} recompute {kept}{also}"
        memory["recomputation"], memory["take_back"] = recomputation, take_back
        return Applied(text=text, values=values, undo=take_back)

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        """A checkpoint of the script's own: two of them nested would compute everything three times."""
        memory = context.memory(self.id)
        recomputation = memory.get("recomputation")
        if (recomputation is not None and recomputation.inside) or memory.get("transformers"):
            return None
        memory["script_checkpoints"] = "the script already checkpoints activations"
        if recomputation is None:
            return NotApplicable(why=memory["script_checkpoints"])
        memory["take_back"]()
        return NotApplicable(why=f"reverted: {memory['script_checkpoints']}")


def _set_compiler_budget(budget: float) -> Effect:
    import torch._functorch.config

    config: Any = torch._functorch.config
    before = config.activation_memory_budget
    if before != 1.0:
        return NotApplicable(why=f"the script sets activation_memory_budget={before}")
    return Applied(
        text="the compiler keeps {budget:.0%} of the activations (activation_memory_budget)",
        values={"budget": budget},
        numerics=Numerics.REORDERED,
        undo=set_option(config, "activation_memory_budget", budget),
    )


def _switch_transformers(model: Any) -> Effect:
    if any(find_buffer_changer(part) for part in model.children()):
        return NotApplicable(why="the model contains batch norm, which would count every batch twice")
    config = model.config
    before = getattr(config, "use_cache", None)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if before:
        config.use_cache = False

    def undo() -> None:
        model.gradient_checkpointing_disable()
        if before:
            config.use_cache = before

    note = ", use_cache=False" if before else ""
    return Applied(text=f"gradient_checkpointing_enable(use_reentrant=False){note}", undo=undo)


def _switch_caches_off(model: Any) -> tuple[Callable[[], None], str]:
    """Models of transformers fill a cache for generating text, which a block would fill again when it is recomputed.

    Returns a function that undoes it, and what to report about it.
    """
    configs: dict[int, Any] = {id(one): one for one in (getattr(part, "config", None) for part in model.modules())}
    switched = [one for one in configs.values() if getattr(one, "use_cache", None) is True]
    for config in switched:
        config.use_cache = False

    def restore() -> None:
        for config in switched:
            config.use_cache = True

    return restore, ", use_cache=False" if switched else ""


OWN_KEYS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Arguments of checkpoint() that are not handed on to the function."""


class KeepActivations(Technique):
    """
    ## What it does
    Turns the script's calls `torch.utils.checkpoint.checkpoint(function, ...)` into `function(...)`, including those
    from `checkpoint_sequential` and the models of transformers. With the API, it turns off `gradient_checkpointing` in
    a transformers model.

    ## When it helps
    It helps if memory is far from full. Backward then does not repeat the forward of the checkpointed parts: with all
    blocks of a 10 million parameter transformer checkpointed, the step took 340 ms instead of 273 ms in float32, and
    215 ms instead of 169 ms under bf16 (torch 2.13, one CPU core).

    ## When it does not
    It does not help if memory would then be full. With recomputation, a transformer with six blocks kept 46 of 188 MB
    of its activations, so expect several times the activation memory. Inside compiled code, the compiler decides.

    ## Numerics
    Exact. Resampled if the script passed `preserve_rng_state=False`: its recomputation drew different dropout masks
    than its forward. hotloop leaves a reentrant call unchanged if none of its inputs needs a gradient, because its
    parameters are not trained. Batch norm inside a checkpoint counted every batch twice in its running statistics;
    without the checkpoint, it counts every batch once.
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
            return NotApplicable(why="the call has its own context_fn, which runs during recomputation")
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
