"""sdpa-backend: which kernel computes scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

MEMBERS = {
    "flash": "flash_sdp",
    "efficient": "mem_efficient_sdp",
    "cudnn": "cudnn_sdp",
    "math": "math_sdp",
}
"""Names of their switches in torch.backends.cuda."""
SET: dict[str, bool] = {}
"""The switches as hotloop has set them in this process, so that they are not taken for the script's."""


class SdpaBackend(Technique):
    """
    ## What it does
    Turns the other backends off for the whole process (`torch.backends.cuda.enable_flash_sdp(False)` and the like,
    which apply on a CPU too), except 'math', which can do everything: calls that the chosen one cannot do still work,
    and recomputation in backward uses the same backend. A model whose attention seems hand-written (a softmax and two
    matrix products in one function) is left alone, and the report shows where it is: torch's
    `scaled_dot_product_attention` would compute it without storing the scores, but only the author can say whether the
    formula is the same.

    ## When it helps
    torch's own order is usually right. Exceptions are a GPU on which another backend is faster for this model's head
    size and sequence length, or 'math' to compare numerics. Not measured yet: measure it yourself.

    ## When it does not
    Models that do not call scaled_dot_product_attention, or call flash_attn themselves; a script that chose a backend
    itself. On a CPU there are 'flash' and 'math' only.

    If a kernel cannot run, 'math' silently does the call. torch requires (`sdp_utils.cpp` in
    `aten/src/ATen/native/transformers/cuda`, read on 2026-11-22):

    - 'flash' on NVIDIA: compute capability 8.0 (A100, RTX 30) up to 12.1, not V100 and T4; float16 or bfloat16, so
      autocast or half-precision weights; no `attn_mask` (`is_causal=True` is allowed if queries and keys are equally
      long); the same head size of at most 256 for query, key and value. With gradients, head sizes above 192 are
      limited on 8.6 to 8.9 and 12.x. On AMD: a GPU for which torch's AOTriton kernels were built.
    - 'efficient' on NVIDIA: compute capability 5.0 up to 12.1; float32 too, bfloat16 from 8.0; masks are allowed.
    - 'cudnn': cuDNN 8.9.3 or newer; a head size that is a multiple of 8, most often at most 128.

    To see why a kernel is refused, allow it alone: `with torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION):`
    around the call warns with the reason and fails.

    ## Numerics
    Reordered: the same sums in another order; 'math' in half precision rounds the scores as well.
    """

    id = "sdpa-backend"
    summary = "choose the kernel of scaled_dot_product_attention"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.ATTENTION
    settings = (
        Setting(name="backend", kind=str, default="flash", choices=tuple(MEMBERS), help="backend to try first"),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.apply.attention import find_attention

        name = str(settings["backend"])
        attentions = find_attention(model)
        if not any(one.kind == "sdpa" for one in attentions):
            return NotApplicable(why=_explain_none(attentions))
        flags: Any = torch.backends.cuda
        before = _switches(flags)
        off = [switch for switch, is_on in before.items() if not is_on]
        if off and before != SET:
            return NotApplicable(why=f"the script sets enable_{off[0]}(False)")
        if context.memory(self.id).get("done"):
            return None  # with a model before this one
        device = next(model.parameters()).device.type
        if device == "cpu" and name not in ("flash", "math"):
            return NotApplicable(why=f"the model is on the CPU, which has no {name} backend")
        if MEMBERS[name] not in before:
            return NotApplicable(why=f"this torch has no {name} backend")
        wanted = {switch: switch in (MEMBERS[name], MEMBERS["math"]) for switch in before}
        _switch(flags, wanted)
        SET.update(wanted)
        context.memory(self.id)["done"] = True

        def undo() -> None:
            if _switches(flags) == wanted:
                _switch(flags, before)
                SET.update(before)

        behind = "" if name == "math" else ", 'math' if it cannot run"
        by_hand = [one for one in attentions if one.kind == "by-hand"]
        beside = f"; {by_hand[0].module} seems to compute attention itself and is not changed" if by_hand else ""
        text = f"scaled_dot_product_attention by {{backend!r}}{behind}{beside}"
        return Applied(text=text, values={"backend": name}, undo=undo)


def _explain_none(attentions: tuple[Any, ...]) -> str:
    for one in attentions:
        if one.kind == "flash-attn":
            return f"{one.module} calls flash_attn itself ({one.file}:{one.line})"
    for one in attentions:
        return (
            f"{one.module} seems to compute attention itself ({one.file}:{one.line}); scaled_dot_product_attention "
            "would not store the scores, but hotloop cannot prove that the formula is the same"
        )
    return "no module was observed to call scaled_dot_product_attention"


def _switches(flags: Any) -> dict[str, bool]:
    """Those that this torch has, by name; torch sets all of them."""
    names = [name for name in MEMBERS.values() if hasattr(flags, f"{name}_enabled")]
    return {name: bool(getattr(flags, f"{name}_enabled")()) for name in names}


def _switch(flags: Any, wanted: Mapping[str, bool]) -> None:
    for name, is_on in wanted.items():
        getattr(flags, f"enable_{name}")(is_on)
