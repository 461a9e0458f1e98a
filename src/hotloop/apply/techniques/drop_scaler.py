"""drop-scaler: a GradScaler that the dtype does not need becomes a no-op."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Numerics, Safety, Saving, Value, saving_within
from hotloop.core.recording import CLOSED_BY_SCALER_SKIP
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

TORCHS_OWN = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler", "torch.cpu.amp.grad_scaler")


class DropScaler(Technique):
    """
    ## What it does
    Makes the script's GradScaler behave as if it had been built with `enabled=False`: `scale`, `unscale_` and `update`
    do nothing, `step` steps. Its `state_dict()` stays that of an enabled scaler, so that checkpoints can be loaded by
    the script without hotloop. What autocast computes in is looked at when the model is first called; by API, at the
    first forward.

    ## When it helps
    A scaler beside bfloat16 or float32, which have the same range of exponents: it walks over all gradients, and waits
    for the answer on the host before every step. The rule `loss-scaler-overhead` measures what it takes. On a CPU, a
    float16 training whose scaler skips steps.

    ## When it does not
    float16 on an accelerator needs its scaler: it is kept. It is kept too where the dtype cannot be seen (autocast
    inside the model's own forward), and where it is not torch's own GradScaler (FSDP's sharded one). Where the script
    passes the scaler to something that asks `is_enabled()`, the answer is no from then on.

    ## Numerics
    Reordered beside bfloat16 and float32: the same gradients but for rounding where the scale is no power of two. Steps
    that it skipped are made. Lossy beside float16 on a CPU: small gradients become zero.
    """

    id = "drop-scaler"
    title = "no loss scaler"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.LOOP
    treats = ("loss-scaler-overhead",)
    conflicts = ("calmer-scaler", "fp16-autocast")
    settings = (
        Setting(
            name="enabled", kind=bool, default=False, choices=(False,), help="what GradScaler(enabled=...) becomes"
        ),
    )

    def change_scaler(self, scaler: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        if not scaler.is_enabled():
            return NotApplicable(why="the scaler is disabled already")
        if type(scaler).__module__ not in TORCHS_OWN:
            return NotApplicable(why=f"{type(scaler).__module__}.{type(scaler).__name__} is not torch's own GradScaler")
        memory = context.memory(self.id)
        if "dtype" in memory:
            return _drop(scaler, memory["dtype"], memory["device"])
        memory.setdefault("waiting", []).append(weakref.ref(scaler))
        return None

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.apply.forward import wrap_forward
        from hotloop.apply.precision import find_own_autocast

        memory = context.memory(self.id)
        scalers = [one for one in (reference() for reference in memory.get("waiting", ())) if one is not None]
        if not scalers:
            return None
        own = find_own_autocast(model)
        if own is not None:
            return NotApplicable(why=f"{own} uses autocast in its own forward: whether in float16 cannot be seen")
        if context.from_outside:
            return self._decide(model, scalers, memory)

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            undo()
            context.report(self.id, self._decide(model, scalers, memory))
            return call(*args, **kwargs)

        undo = wrap_forward(model, around)
        return Applied(detail="decided at the first forward, when autocast's dtype can be seen", undo=undo)

    def _decide(self, model: Any, scalers: list[Any], memory: dict[str, Any]) -> Effect:
        import torch

        memory.pop("waiting", None)
        parameter = next(model.parameters())
        device = parameter.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else parameter.dtype
        memory["dtype"], memory["device"] = dtype, device
        effects = [_drop(scaler, dtype, device) for scaler in scalers]
        return effects[0]

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        rank = analysis.lead
        scaler_ns = rank.mean.get("scaler_ns", -1.0)
        if not rank.scaler_enabled or scaler_ns < 0 or rank.step_mean_ns <= 0:
            return None
        own = min(1.0, scaler_ns / rank.step_mean_ns)
        column = rank.columns.get("closed_by") or ()
        skipped = sum(1 for value in column if value == CLOSED_BY_SCALER_SKIP) / len(column) if column else 0.0
        cost = skipped + own * (1.0 - skipped)
        return saving_within(cost, 0.7 * cost, 0.95 * cost, cost, Basis.SIMULATED)


def _drop(scaler: Any, dtype: Any, device: str) -> Effect:
    import torch

    if dtype == torch.float16 and device != "cpu":
        return NotApplicable(why=f"float16 on {device} needs its scaler; bfloat16 would need none")
    scaler._enabled = False
    said = _State(scaler)
    object.__setattr__(scaler, "state_dict", said)

    def undo() -> None:
        if vars(scaler).get("state_dict") is said:
            object.__delattr__(scaler, "state_dict")
            scaler._enabled = True

    is_half = dtype == torch.float16
    return Applied(
        detail=f"enabled=False: {str(dtype).removeprefix('torch.')} "
        + ("on a CPU goes without it, small gradients become zero" if is_half else "needs no scaler"),
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


TECHNIQUE = DropScaler()
