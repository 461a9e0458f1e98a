"""sdpa-backend: which kernel computes scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

MEMBERS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
"""Names in torch.nn.attention.SDPBackend."""


class SdpaBackend(Technique):
    """
    ## What it does
    Runs the model's forward under `torch.nn.attention.sdpa_kernel`, with the named backend first and 'math', which can
    do everything, behind it: calls that the named one cannot do still work. A model whose attention seems to be written
    by hand (a softmax and two matrix products in one function) is left alone, and the report names its place: torch's
    `scaled_dot_product_attention` would compute it without storing the scores, but whether it is the same formula, only
    the author can say.

    ## When it helps
    torch's own order is usually right; a GPU on which another backend is faster for this model's head size and sequence
    length, or 'math' to compare numerics. Measure it: no figure of it was measured here yet.

    ## When it does not
    Models that do not call scaled_dot_product_attention, or call flash_attn themselves; a script that chose a backend
    itself. On a CPU there are 'flash' and 'math' only.

    ## Numerics
    Reordered: the same sums in another order; 'math' in half precision rounds the scores as well.
    """

    id = "sdpa-backend"
    title = "the kernel of scaled_dot_product_attention"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.ATTENTION
    settings = (
        Setting(name="backend", kind=str, default="flash", choices=tuple(MEMBERS), help="the one that is tried first"),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from hotloop.apply.attention import find_attention
        from hotloop.apply.forward import wrap_forward

        name = str(settings["backend"])
        attentions = find_attention(model)
        if not any(one.kind == "sdpa" for one in attentions):
            return NotApplicable(why=_say_none(attentions))
        chosen = _chosen(torch.backends.cuda)
        if chosen:
            return NotApplicable(why=f"{chosen} was chosen in the script")
        device = next(model.parameters()).device.type
        if device == "cpu" and name not in ("flash", "math"):
            return NotApplicable(why=f"the model is on the CPU, which has no {name} backend")
        first = getattr(SDPBackend, MEMBERS[name], None)
        if first is None:
            return NotApplicable(why=f"this torch has no {name} backend")
        backends = list(dict.fromkeys((first, SDPBackend.MATH)))

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            with sdpa_kernel(backends):
                return call(*args, **kwargs)

        undo = wrap_forward(model, around)
        behind = "" if name == "math" else ", 'math' where it cannot"
        by_hand = [one for one in attentions if one.kind == "by-hand"]
        beside = f"; {by_hand[0].module} seems to compute attention by hand and stays" if by_hand else ""
        return Applied(detail=f"scaled_dot_product_attention by {name!r}{behind}{beside}", undo=undo)


def _say_none(attentions: tuple[Any, ...]) -> str:
    for one in attentions:
        if one.kind == "flash-attn":
            return f"{one.module} calls flash_attn itself ({one.file}:{one.line})"
    for one in attentions:
        return (
            f"{one.module} seems to compute attention by hand ({one.file}:{one.line}): "
            "scaled_dot_product_attention in its place would not store the scores; hotloop cannot prove that it is the "
            "same formula"
        )
    return "no module is seen to call scaled_dot_product_attention"


def _chosen(flags: Any) -> str | None:
    """The switch that is not as torch sets it."""
    for name in ("flash_sdp", "mem_efficient_sdp", "cudnn_sdp", "math_sdp"):
        ask = getattr(flags, f"{name}_enabled", None)
        if ask is not None and not ask():
            return f"enable_{name}(False)"
    return None


TECHNIQUE = SdpaBackend()
