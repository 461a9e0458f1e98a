"""compile-model and dynamic-shapes: which parts torch.compile compiles, and for which shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.change.apply.compiling import allow_failures, allow_kept_graphs, find_missing_compiler
from hotloop.change.apply.forward import wrap_forward
from hotloop.change.apply.gradient_use import find_second_derivative
from hotloop.change.apply.modules import find_blocks, find_compilation, is_inside_compiled_function, is_sharded, unwrap
from hotloop.core.findings import Numerics, Value
from hotloop.core.sources import ModelCompile
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Setting, Stage, Technique

SOURCE_NAMES = ("mode", "dynamic", "fullgraph", "backend")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompileModel(Technique):
    """
    ## What it does
    Compiles the model in place (`Module.compile`), so its class, `state_dict` and pickles stay as they are. `regional`
    compiles each repeated block by itself: one compilation serves all blocks and takes a fraction of the time. Under
    DistributedDataParallel, the inner module is compiled, and Dynamo splits its graph at DDP's buckets, so
    communication still overlaps with backward. Under FSDP2, the blocks are compiled inside their sharding hooks.
    hotloop leaves a model alone that the script itself compiles. If a part cannot be compiled, it runs as before and
    torch prints the reason, unless `fullgraph` asks for an error. `backward(retain_graph=True)` works as before:
    compiled backwards keep the buffers that the forward saved (`donated_buffer = False`).

    ## When it helps
    It helps if much of the time goes to pointwise operators, normalizations and softmax, which eager mode runs one by
    one. For a 10 million parameter transformer on one CPU core, compiling by itself gave a speedup of 1.05x in float32
    and 1.16x to 1.24x under bf16 (torch 2.13, CPU time, n = 7). Compiling took 24 to 40 s, so it took about 1,200 steps
    to break even.

    Which `mode` to use, according to the documentation of `torch.compile` in torch 2.13 and
    `torch._inductor.list_mode_options()`:

    - `default`: start here. This mode fuses operators and has the shortest compile time.
    - `reduce-overhead`: the same code, launched as CUDA graphs. Use it if the GPU waits for the host because of small
      batches or many short kernels (rule `launch-bound`). It uses more memory, because the graphs' workspace stays
      allocated. It has no effect if a graph cannot be recorded because inputs change in place, shapes vary, or the work
      runs on the CPU. `TORCH_LOGS=perf_hints` shows why.
    - `max-autotune`: also times several kernels (Triton or templates) for every matrix product and convolution, picks
      the fastest, and turns on CUDA graphs. Use it for long runs that are dominated by matrix products and
      convolutions, because compiling takes much longer.
    - `max-autotune-no-cudagraphs`: the same without CUDA graphs. Use it if the graphs do not fit in memory or cannot be
      recorded.

    On a CPU, there are no CUDA graphs, and `reduce-overhead` does the same as `default`.

    ## When it does not
    Compiling does not pay off in short runs or if shapes change all the time (set `dynamic = true` for such shapes).
    LSTM and GRU layers, prints, and branches on tensor values break the graph. hotloop leaves models alone whose script
    differentiates gradients (`create_graph=True`), because torch does not support this for compiled code.

    ## Numerics
    Reordered: fused operators keep intermediate results and sum in another order. Resampled if the forward draws random
    numbers (dropout): from the same seed, inductor's code draws different numbers from those of eager mode. hotloop
    detects this at the first forward, from the state of torch's generator.
    """

    id = "compile-model"
    summary = "compile the model with `torch.compile`"
    numerics = Numerics.REORDERED
    stage = Stage.COMPILE
    is_probed = True
    source = ModelCompile(names=SOURCE_NAMES)
    treats = ("uncompiled-model",)
    settings = (
        Setting(name="mode", kind=str, default="default", choices=MODES, help="torch.compile's mode"),
        Setting(name="dynamic", kind=bool, default=None, help="symbolic shapes (default: torch decides)"),
        Setting(name="fullgraph", kind=bool, default=False, help="raise an error at a graph break"),
        Setting(name="regional", kind=bool, default=False, help="compile each repeated block separately"),
        Setting(name="block", kind=str, default=None, help="class of the blocks (default: the repeated class)"),
        Setting(name="backend", kind=str, default="inductor", help="torch.compile's backend"),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if settings["block"] is not None and not settings["regional"]:
            return "block needs regional = true: without it, the entire model is compiled"
        return None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        why = find_hindrance(model, str(settings["backend"]))
        if why is not None:
            return NotApplicable(why=why)
        inner, block = unwrap(model), settings["block"]
        options = {key: settings[key] for key in ("dynamic", "fullgraph", "backend")}
        if settings["mode"] != "default":
            options["mode"] = settings["mode"]
        sharded = any(is_sharded(part) for part in inner.modules())
        if not settings["regional"] and not sharded:
            parts = [inner]
        else:
            parts = find_blocks(inner, None if block is None else str(block))
            if not parts:
                named = f"no module of class {block}" if block else "no repeated class of modules"
                return NotApplicable(why=f"the model has {named}, so there are no blocks to compile")
        undos = [allow_failures(bool(settings["fullgraph"])), allow_kept_graphs()]
        device, reported = next(inner.parameters()).device, [False]
        values: dict[str, Value] = {key: settings[key] for key in SOURCE_NAMES}
        what = type(inner).__name__
        if parts != [inner]:
            what, values["blocks"] = f"{{blocks}} blocks of {type(parts[0]).__name__}", len(parts)

        def report_draws() -> None:
            if not reported[0]:
                reported[0] = True
                text = "its forward draws random numbers, which compiled code draws differently"
                context.report(self.id, Applied(text=text, values=values, numerics=Numerics.RESAMPLED))

        for part in parts:
            undos.append(_compile_forward(part, options) if sharded else _compile_in_place(part, options))
            if not sharded and draws_anew(str(settings["backend"])):
                _watch_draws(part, device, report_draws)

        def undo() -> None:
            for take_back in reversed(undos):
                take_back()

        options_text = ", ".join(f"{key}={{{key}}}" for key, value in options.items() if value not in (None, False))
        return Applied(text=f"compiled {what} ({options_text})", values=values, undo=undo)

    def why_no_source(self, values: Mapping[str, Value]) -> str | None:
        return (
            "its blocks were compiled separately, which cannot be written in the source" if "blocks" in values else None
        )


def find_hindrance(model: Any, backend: str) -> str | None:
    """Why the model must not or cannot be compiled; None when it can."""
    import torch
    from torch._dynamo.eval_frame import is_dynamo_supported

    found = find_compilation(model)
    if found is not None:
        return found
    if is_inside_compiled_function():
        return "the script calls the model inside a function that it compiles"
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        return "the model was scripted with torch.jit"
    for cls in type(model).__mro__:
        if cls.__name__ in ("FullyShardedDataParallel", "DataParallel") or cls.__module__.startswith("deepspeed."):
            return f"{cls.__name__} controls how its submodules run; compile the model before wrapping it"
    if not is_dynamo_supported():
        return "this torch version cannot compile with this Python version"
    known = torch._dynamo.list_backends(exclude_tags=())
    if backend not in known:
        return f"torch has no backend {backend!r}; it has {', '.join(sorted(known))}"
    place = find_second_derivative()
    if place is not None:
        return f"the script differentiates gradients ({place}), which compiled models do not support"
    return find_missing_compiler(next(model.parameters()).device.type) if backend == "inductor" else None


def _compile_in_place(module: Any, options: Mapping[str, Value]) -> Callable[[], None]:
    import torch
    from torch._dynamo.external_utils import wrap_inline

    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    if owner.__module__.startswith("torch."):
        # Of torch's own classes (Sequential) Module.compile compiles nothing: Dynamo looks at no frame of torch.nn.
        compile_function: Any = torch.compile
        module._compiled_call_impl = compile_function(wrap_inline(module._call_impl), **options)
    else:
        module.compile(**options)
    return lambda: vars(module).pop("_compiled_call_impl", None)


def draws_anew(backend: str) -> bool:
    """Whether code of this backend draws other random numbers than eager mode."""
    import torch._inductor.config

    config: Any = torch._inductor.config
    return backend == "inductor" and not config.fallback_random


def _watch_draws(module: Any, device: Any, emit: Callable[[], None]) -> None:
    """``emit()`` if the first call of the compiled module draws random numbers.

    Inductor's code draws other numbers than the same operators do in eager mode, from a seed that it takes from torch's
    generator.
    """
    import torch

    compiled = vars(module)["_compiled_call_impl"]

    def state() -> Any:
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    def first_call(*args: Any, **kwargs: Any) -> Any:
        if vars(module).get("_compiled_call_impl") is first_call:
            module._compiled_call_impl = compiled
        before = state()
        result = compiled(*args, **kwargs)
        if not torch.equal(before, state()):
            emit()
        return result

    module._compiled_call_impl = first_call


def _compile_forward(module: Any, options: Mapping[str, Value]) -> Callable[[], None]:
    """The forward alone, so that the hooks that gather and free its parameters stay outside of the graph."""
    import torch

    compile_function: Any = torch.compile
    compiled = compile_function(module.forward, **options)
    return wrap_forward(module, lambda call, args, kwargs: compiled(*args, **kwargs))


CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")


class DynamicShapes(Technique):
    """
    ## What it does
    Passes `dynamic=True` to the script's own calls of `torch.compile` and `Module.compile`: tensor sizes become
    variables of the compiled code.

    ## When it helps
    It helps if the length of batches keeps changing: each new length triggers a recompilation that takes several
    seconds. The finding `recompilation` measures that time in the run.

    ## When it does not
    With only a few shapes, all of which are compiled in the first steps, code for a single shape is faster than code
    for all shapes. Recompilation through guards on other properties (Python numbers, types) stays. hotloop leaves calls
    alone whose mode records a CUDA graph for each shape, and the script's `dynamic=False` unless the strategy sets
    `override = true`.

    ## Numerics
    Reordered: torch may choose other kernels, which sum in another order.
    """

    id = "dynamic-shapes"
    summary = "compile once for all shapes"
    numerics = Numerics.REORDERED
    stage = Stage.COMPILE
    treats = ("recompilation",)
    acts_on_start = True
    conflicts = ("compile-model",)
    settings = (
        Setting(name="dynamic", kind=bool, default=True, choices=(True,), help="value passed to torch.compile"),
    )
    functions = ("torch:compile",)

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        chosen, mode = call.kwargs.get("dynamic"), call.kwargs.get("mode")
        if chosen:
            return NotApplicable(why="the script sets dynamic=True")
        if mode in CUDA_GRAPH_MODES:
            return NotApplicable(why=f"the script's mode={mode!r} records a CUDA graph per shape")
        if call.kwargs.get("shapes_spec") is not None:
            return NotApplicable(why="the script sets shapes_spec, which defines the sizes that vary")
        explicit = "dynamic=False" if chosen is False else None
        if explicit is not None and not context.strategy.overrides(self.id):
            return NotApplicable(why=f"the script sets {explicit}", explicit=explicit)
        call.kwargs["dynamic"] = True
        replaced = "" if explicit is None else f", instead of the script's {explicit}"
        return Applied(
            text=f"torch.compile(dynamic={{dynamic}}){replaced}", values={"dynamic": True}, explicit=explicit
        )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if context.from_outside:
            return None
        return NotApplicable(why="the API does not patch torch; write torch.compile(..., dynamic=True)")
