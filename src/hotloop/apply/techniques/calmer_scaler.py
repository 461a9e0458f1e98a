"""calmer-scaler: a GradScaler that tries larger factors less often, so that fewer steps are lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

USUAL_INTERVAL = 2000
"""growth_interval of torch's GradScaler, where the script sets none."""


class CalmerScaler(Technique):
    """
    ## What it does
    Sets `growth_interval`, and `init_scale` if you give it, of the script's GradScaler when it is built. Without
    settings, an interval below torch's own 2000 is raised to that. A number in the strategy is set as it is, and the
    report shows what the script had chosen.

    ## When it helps
    A float16 training that keeps losing steps after its start: each time the scaler doubles its factor beyond what the
    gradients allow, a whole step is computed and thrown away. With an interval of 2 that is up to every third step,
    with 2000 one in 2001; the rule `loss-scaler-overhead` counts them.

    ## When it does not
    bfloat16 and float32 need no scaler at all (`drop-scaler`). Skips in the first steps are how the scaler finds its
    factor; a smaller `init_scale` avoids a few of them, once. A loaded checkpoint restores the interval with which it
    was saved. Overflows that come from the model itself stay.

    ## Numerics
    Lossy: steps that would be skipped are made, so training takes another path. A smaller factor loses more of the
    smallest gradients.
    """

    id = "calmer-scaler"
    summary = "set the GradScaler so that it skips fewer steps"
    numerics = Numerics.LOSSY
    stage = Stage.LOOP
    treats = ("loss-scaler-overhead",)
    conflicts = ("drop-scaler",)
    settings = (
        Setting(
            name="init_scale",
            kind=float,
            default=None,
            least=1,
            most=2.0**32,
            help="initial scale (default: the script's)",
        ),
        Setting(
            name="growth_interval",
            kind=int,
            default=None,
            least=1,
            most=1_000_000_000,
            help="steps without overflow after which the scale doubles (default: the script's, at least 2000)",
        ),
    )

    def change_scaler(self, scaler: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        if not scaler.is_enabled():
            return NotApplicable(why="the scaler is disabled")
        interval, scale = scaler.get_growth_interval(), scaler._init_scale
        named = settings["growth_interval"]
        wanted = max(int(interval), USUAL_INTERVAL) if named is None else int(named)
        wanted_scale = scale if settings["init_scale"] is None else float(settings["init_scale"])
        if scaler._scale is not None and wanted_scale != scale:
            return NotApplicable(why="the scaler was already used, so its initial scale no longer matters")
        changes, values = [], {"growth_interval": wanted, "init_scale": wanted_scale}
        if wanted != interval:
            changes.append(f"growth_interval={{growth_interval}} instead of {interval}")
        if wanted_scale != scale:
            changes.append(f"init_scale={{init_scale:g}} instead of {scale:g}")
        if not changes:
            return NotApplicable(
                why=f"growth_interval is already {interval} and init_scale already {scale:g}; set other values"
            )
        scaler.set_growth_interval(wanted)
        scaler._init_scale = wanted_scale

        def undo() -> None:
            scaler.set_growth_interval(interval)
            scaler._init_scale = scale

        return Applied(text=", ".join(changes), values=values, undo=undo)
