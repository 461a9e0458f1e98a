"""foreach-clipping: gradients are clipped by calls over lists of all tensors."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from typing import Any

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Safety, Saving, Value
from hotloop.core.techniques import Applied, Call, Context, Effect, NotApplicable, Setting, Stage, Technique

FOREACH_AT = {"clip_grad_norm_": 4, "clip_grad_value_": 2}
"""Position of the argument ``foreach``."""

MOST_BYTES = 1 << 20


class ForeachClipping(Technique):
    """
    ## What it does
    Calls `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` without the script's `foreach=False`: norms and
    scaling of all gradients in a few calls, where torch has them for these tensors. A loop in the script is its own
    code, which nothing outside can replace: the report then shows its line. Write
    `torch.nn.utils.clip_grad_norm_(parameters, max_norm)` instead.

    ## When it helps
    Many small gradients, each of which otherwise costs several operators and their Python overhead. The probe after a
    run measures it on the tensors of that run.

    ## When it does not
    Few large gradients are memory-bound either way. Calls that do not pass `foreach` use lists already.

    ## Numerics
    Reordered: the same norms and the same factor; on a CPU the bits are the same.
    """

    id = "foreach-clipping"
    summary = "clip all tensors in one call (`torch._foreach_*`) instead of one by one"
    effort = "easy"
    numerics = Numerics.REORDERED
    safety = Safety.AUTO
    stage = Stage.LOOP
    treats = ("python-gradient-loop",)
    settings = (
        Setting(
            name="foreach",
            kind=bool,
            default=True,
            choices=(True,),
            help="use operations on lists of tensors instead of a loop",
        ),
    )
    functions = ("torch.nn.utils.clip_grad:clip_grad_norm_", "torch.nn.utils.clip_grad:clip_grad_value_")

    def change_call(self, call: Call, settings: Mapping[str, Value], context: Context) -> Effect:
        name = call.name.rpartition(":")[2]
        place = FOREACH_AT[name]
        positional = len(call.args) > place
        chosen = call.args[place] if positional else call.kwargs.get("foreach")
        if chosen is not False:
            return NotApplicable(why=f"{name} already uses lists")
        # None, not True: torch raises on True for tensors that it has no lists for, and loops on None.
        if positional:
            call.args = (*call.args[:place], None, *call.args[place + 1 :])
        else:
            call.kwargs["foreach"] = None
        return Applied(text="{function} on lists instead of the script's foreach=False", values={"function": name})

    def change_optimizer(self, optimizer: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        """Nothing of the optimizer: by its first use it is known which script trains, and what it loops over."""
        if not context.from_outside:
            return NotApplicable(why="your loop calls the clipping; use torch.nn.utils.clip_grad_norm_ there")
        found = find_gradient_loop(getattr(sys.modules.get("__main__"), "__file__", None))
        if found is None:
            return None
        return NotApplicable(
            why=f"the loop over gradients is the script's own code at {found}; use torch.nn.utils.clip_grad_norm_ there"
        )

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """None: the probe times a loop by hand, which this does not replace from outside."""
        return None


def find_gradient_loop(path: str | None) -> str | None:
    """``file:line`` of the first loop in this script that calculates with the gradients of single parameters."""
    if path is None or not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
        return None
    with open(path, "rb") as file:
        try:
            tree = ast.parse(file.read())
        except (SyntaxError, ValueError, RecursionError):
            return None
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _calculates_with_grad(node):
            return f"{os.path.basename(path)}:{node.lineno}"
    return None


def _calculates_with_grad(loop: ast.For) -> bool:
    """Whether the loop's body calls a method of ``p.grad`` or has it in a formula, ``p`` being what it loops over."""
    name = loop.target.id if isinstance(loop.target, ast.Name) else ""

    def is_grad(node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute) and node.attr == "data":
            node = node.value
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "grad"
            and isinstance(node.value, ast.Name)
            and node.value.id == name
        )

    for node in ast.walk(ast.Module(body=loop.body, type_ignores=[])):
        parts = (
            [node.left, node.right] if isinstance(node, ast.BinOp)
            else [node.target] if isinstance(node, ast.AugAssign)
            else [node.func.value] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            else []
        )  # fmt: skip
        if any(is_grad(part) for part in parts):
            return True
    return False
