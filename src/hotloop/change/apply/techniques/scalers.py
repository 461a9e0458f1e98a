"""drop-scaler: a GradScaler that becomes a no-op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotloop.change.apply.forward import wrap_forward
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value, saving_of_removal
from hotloop.core.recording import CLOSED_BY_SCALER_SKIP
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

TORCHS_OWN = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler", "torch.cpu.amp.grad_scaler")


class DropScaler(Technique):
    """
    ## What it does
    Makes the script's GradScaler behave as if it were created with `enabled=False`: `scale`, `unscale_` and `update` do
    nothing, and `step` only steps the optimizer. Its `state_dict()` stays that of an enabled scaler, so the script can
    load checkpoints without hotloop. Until the scaler's first update, hotloop checks in every forward which dtype
    autocast uses. It drops the scaler only if no forward used float16 on an accelerator, starting with the next scaled
    loss.

    ## When it helps
    It helps if a scaler is used with bfloat16 or float32, which have the same exponent range: the scaler walks over all
    gradients and makes the host wait for the result before every step. The rule `loss-scaler-overhead` measures its
    cost. On a CPU, it helps float16 training whose scaler skips steps.

    ## When it does not
    With float16 on an accelerator, the scaler is needed, so hotloop keeps it. hotloop also keeps the scaler if the
    dtype cannot be seen (autocast inside the model's own forward), or if the scaler is not torch's own GradScaler (such
    as FSDP's sharded scaler). If the script passes the scaler to something that asks `is_enabled()`, the result is
    False from then on.

    ## Numerics
    Reordered with bfloat16 and float32: the gradients are the same, except for rounding if the scale is not a power of
    two. The optimizer takes steps that the scaler would skip. Lossy with float16 on a CPU: small gradients become zero.
    """

    id = "drop-scaler"
    summary = "train without the GradScaler"
    effort = "medium"
    numerics = Numerics.REORDERED
    numerics_note = ", or lossy if float16 was used"
    stage = Stage.LOOP
    treats = ("loss-scaler-overhead",)
    conflicts = ("fp16-autocast",)
    settings = (
        Setting(
            name="enabled", kind=bool, default=False, choices=(False,), help="new value of GradScaler(enabled=...)"
        ),
    )

    def change_scaler(self, scaler: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if not scaler.is_enabled():
            return NotApplicable(why="the scaler is already disabled")
        if type(scaler).__module__ not in TORCHS_OWN:
            return NotApplicable(why=f"{type(scaler).__module__}.{type(scaler).__name__} is not torch's own GradScaler")
        memory = context.memory(self.id)
        waiting = memory.setdefault("waiting", set())
        first: Any = None

        def look() -> bool:
            """Decide at the first loss after an update: every forward of one step was seen, and no gradient waits."""
            nonlocal first
            states = getattr(scaler, "_per_optimizer_states", None)  # an update makes new ones
            first = states if first is None else first
            if states is first:
                return False
            waiting.discard(look)
            context.report(self.id, _decide(scaler, memory))
            return True

        def undo() -> None:
            waiting.discard(look)
            end()
            while memory.get("wrapped"):
                memory["wrapped"].pop()()

        waiting.add(look)
        end = _watch_scale(scaler, look)
        if context.from_outside:
            memory["why_not"] = "the scaler made no update, so it is unknown whether it is needed"
            return None
        return Applied(text="decided after the scaler's first update, when autocast's dtypes are known", undo=undo)

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.change.apply.precision import find_own_autocast

        memory = context.memory(self.id)
        memory["own"] = memory.get("own") or find_own_autocast(model)
        parameter = next(model.parameters())
        device, dtype = parameter.device.type, parameter.dtype
        seen: dict[Any, None] = memory.setdefault("seen", {})

        def note() -> None:
            seen[torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else dtype, device] = None

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            if memory.get("waiting") and not torch.compiler.is_compiling():
                note()
            return call(*args, **kwargs)

        unwrap = wrap_forward(model, around)
        if context.from_outside:
            note()  # the forward that has met it may be compiled
        else:
            memory.setdefault("wrapped", []).append(unwrap)
        return None

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        rank = analysis.lead
        scaler_ns = rank.mean.get("scaler_ns", -1.0)
        if not rank.scaler_enabled or scaler_ns < 0 or rank.step_mean_ns <= 0:
            return None
        own = min(1.0, scaler_ns / rank.step_mean_ns)
        column = rank.columns.get("closed_by") or ()
        skipped = sum(1 for value in column if value == CLOSED_BY_SCALER_SKIP) / len(column) if column else 0.0
        cost = skipped + own * (1.0 - skipped)
        return saving_of_removal(cost)


def _decide(scaler: Any, memory: Mapping[str, Any]) -> Effect:
    """From the (dtype, device type) of all forwards: float16 anywhere on an accelerator keeps the scaler."""
    import torch

    if memory.get("own") is not None:
        return NotApplicable(why=f"{memory['own']} uses autocast in its own forward, whose dtype is unknown")
    seen = list(memory.get("seen", ()))
    if not seen:
        return NotApplicable(why="no forward was observed, so the dtype of the loss is unknown")
    half = [one for one in seen if one[0] == torch.float16]
    return _drop(scaler, *max(half or seen, key=lambda one: one[1] != "cpu"))


def _drop(scaler: Any, dtype: Any, device: str) -> Effect:
    import torch

    if dtype == torch.float16 and device != "cpu":
        return NotApplicable(why=f"float16 on {device} needs a scaler; bfloat16 does not")
    scaler._enabled = False
    state_of = _State(scaler)
    object.__setattr__(scaler, "state_dict", state_of)

    def undo() -> None:
        if vars(scaler).get("state_dict") is state_of:
            object.__delattr__(scaler, "state_dict")
            scaler._enabled = True

    is_half = dtype == torch.float16
    return Applied(
        text="enabled=False: {dtype} "
        + ("on a CPU runs without it, but small gradients become zero" if is_half else "needs no scaler"),
        values={"dtype": str(dtype).removeprefix("torch.")},
        numerics=Numerics.LOSSY if is_half else Numerics.REORDERED,
        undo=undo,
    )


class _State:
    """``state_dict`` of the scaler as it was when it was dropped; a copy or a pickle has the plain method."""

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler

    def __call__(self) -> dict[str, Any]:
        one = self.scaler
        return {
            "scale": one._init_scale if one._scale is None else one._scale.item(),
            "growth_factor": one._growth_factor,
            "backoff_factor": one._backoff_factor,
            "growth_interval": one._growth_interval,
            "_growth_tracker": one._init_growth_tracker if one._growth_tracker is None else one._growth_tracker.item(),
        }

    def __reduce__(self) -> Any:
        return (getattr, (self.scaler, "state_dict"))


def _watch_scale(scaler: Any, look: Callable[[], bool]) -> Callable[[], None]:
    """Call ``look()`` before every ``scaler.scale`` until it returns True; returns a function that stops it earlier."""
    watched = _Scale(scaler, look)
    object.__setattr__(scaler, "scale", watched)
    return watched.end


class _Scale:
    """``scale`` of one scaler; a copy or a pickle of the scaler has the plain method."""

    def __init__(self, scaler: Any, look: Callable[[], bool]) -> None:
        self.scaler = scaler
        self._look = look

    def __call__(self, outputs: Any) -> Any:
        if self._look():
            self.end()
        return type(self.scaler).scale(self.scaler, outputs)

    def end(self) -> None:
        if vars(self.scaler).get("scale") is self:
            object.__delattr__(self.scaler, "scale")

    def __reduce__(self) -> Any:
        return (getattr, (self.scaler, "scale"))
