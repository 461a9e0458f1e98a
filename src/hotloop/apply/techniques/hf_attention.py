"""hf-attention: the attention implementation of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

SUPPORT = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}
ATTENTION = "_attn_implementation"
"""Where a configuration of Transformers holds the name."""


class HfAttention(Technique):
    """
    ## What it does
    Calls `set_attn_implementation` of a Hugging Face model before its first forward, if the model's class declares
    support for the implementation. The report shows the previous one.

    ## When it helps
    Models loaded with `attn_implementation="eager"`, or whose configuration sets it: eager attention stores the scores
    of every head and reads them back; `scaled_dot_product_attention` does not. Not measured here yet.

    ## When it does not
    Transformers uses 'sdpa' by itself where a class supports it. Models that return attention weights
    (`output_attentions`) need 'eager': the first call that asks for them restores the old one. Models whose
    configuration caps the scores (Gemma 2) do not get 'sdpa', which has no cap. Models that are compiled already, and
    versions of Transformers without `set_attn_implementation`. The manual of `sdpa-backend` lists the GPUs and types
    with which 'sdpa' runs as flash attention; 'flash_attention_2' needs the `flash-attn` package, float16 or bfloat16
    weights, and a GPU that the package supports.

    ## Numerics
    Reordered: the same formula with sums in another order.
    """

    id = "hf-attention"
    summary = "choose the attention implementation of a Hugging Face model"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.ASK
    stage = Stage.ATTENTION
    settings = (
        Setting(
            name="implementation",
            kind=str,
            default="sdpa",
            choices=("sdpa", "flash_attention_2", "eager"),
            help="attn_implementation",
        ),
    )

    def change_model(self, model: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from torch._compile import _disable_dynamo

        from hotloop.apply.forward import wrap_forward

        found = next((one for one in _unwrapped(model) if _is_hugging_face(one)), None)
        if found is None:
            return NotApplicable(why="the model is not a Hugging Face Transformers model")
        wanted, name = str(settings["implementation"]), type(found).__name__
        before = getattr(found.config, ATTENTION, None)
        if before == wanted:
            return NotApplicable(why=f"{name} already uses {wanted!r}")
        if not callable(getattr(found, "set_attn_implementation", None)):
            return NotApplicable(why=f"{name} has no set_attn_implementation; upgrade Transformers")
        if getattr(model, "_orig_mod", None) is not None or getattr(model, "_compiled_call_impl", None) is not None:
            return NotApplicable(why="the model is already compiled; set the implementation where the model is loaded")
        if wanted != "eager":
            if getattr(found.config, "output_attentions", False):
                return NotApplicable(why="the script sets output_attentions=True, which needs 'eager'")
            cap = _find_cap(found.config)
            if wanted == "sdpa" and cap is not None:
                return NotApplicable(why=f"{cap} caps attention scores, which {wanted!r} ignores")
            support = SUPPORT[wanted]
            if not (getattr(found, support, False) or getattr(found, f"{support}_2", False)):
                return NotApplicable(why=f"{name} does not support {wanted!r}")
        found.set_attn_implementation(wanted)
        now = getattr(found.config, ATTENTION, None)
        if now != wanted:
            return NotApplicable(why=f"{name} kept {now!r}")

        def around(call: Any, args: Any, kwargs: Any) -> Any:
            if kwargs.get("output_attentions") or getattr(found.config, "output_attentions", False):
                give_up()
            return call(*args, **kwargs)

        @_disable_dynamo  # imports Dynamo when it is called, not before
        def give_up() -> None:
            if getattr(found.config, ATTENTION, None) == wanted:
                undo()
                context.report(self.id, NotApplicable(why="reverted: output_attentions=True needs 'eager'"))

        unwrap = wrap_forward(found, around) if wanted != "eager" else None

        def undo() -> None:
            if unwrap is not None:
                unwrap()
            found.set_attn_implementation(before)

        text = "attn_implementation={implementation!r} instead of {before!r}"
        return Applied(text=text, values={"implementation": wanted, "before": before}, undo=undo)


def _unwrapped(model: Any) -> list[Any]:
    """The module, and those that wrap it for several ranks or hold it as their only child."""
    found = [model]
    while True:
        inner = getattr(found[-1], "module", None)
        if inner is None or inner in found:
            return found
        found.append(inner)


def _find_cap(config: Any) -> str | None:
    """The key of the configuration, or of one inside it, by which the scores of attention are capped."""
    for key, value in vars(config).items():
        if value is not None and "softcap" in key and "att" in key:
            return f"{key}={value}"
        if hasattr(value, ATTENTION) and value is not config:
            inner = _find_cap(value)
            if inner is not None:
                return f"{key}.{inner}"
    return None


def _is_hugging_face(module: Any) -> bool:
    return hasattr(getattr(module, "config", None), ATTENTION) and any(
        cls.__name__ == "PreTrainedModel" for cls in type(module).__mro__
    )
