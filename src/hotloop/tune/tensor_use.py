"""A use of a value in a script -> whether it shows that the value is a plain tensor."""

from __future__ import annotations

import ast
from enum import Enum

from .script import Script

_TENSOR_ATTRIBUTES = frozenset(
    ("shape", "dtype", "device", "data", "ndim", "grad", "T", "mT", "requires_grad", "grad_fn")
)
MOVES = frozenset(
    ("to", "cuda", "cpu", "long", "int", "view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous")
)
"""Methods of a tensor that compute nothing."""
_TENSOR_METHODS = MOVES | frozenset(
    (
        *("abs", "abs_", "add", "add_", "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "backward"),
        *("bfloat16", "bool", "chunk", "clamp", "clamp_min", "clone", "cos", "cumsum", "detach", "detach_", "diff"),
        *("dim", "div", "div_", "double", "eq", "exp", "expand", "expand_as", "flip", "float", "gather", "ge", "gt"),
        *("half", "is_contiguous", "isfinite", "isnan", "item", "le", "log", "log_softmax", "logsumexp", "lt"),
        *("masked_fill", "masked_select", "matmul", "max", "mean", "median", "min", "mm", "movedim", "mul", "mul_"),
        *("nelement", "norm", "numel", "numpy", "permute", "pow", "prod", "register_hook", "relu", "repeat"),
        *("requires_grad_", "retain_grad", "round", "rsub", "scatter", "sigmoid", "sign", "sin", "size", "softmax"),
        *("sort", "split", "sqrt", "square", "std", "sub", "sub_", "sum", "swapaxes", "t", "tanh", "tolist", "topk"),
        *("transpose", "type", "type_as", "unbind", "unflatten", "unfold", "var", "view_as", "zero_"),
    )
)
"""Methods that tensors have, and outputs of other kinds hardly."""
_TORCH_OF_ANYTHING = frozenset(
    ("cat", "compile", "concat", "concatenate", "hstack", "is_tensor", "save", "stack", "vstack")
)
"""Functions of torch that take more than one tensor, or anything."""
BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


class Use(Enum):
    """What a use of a value says about it."""

    TENSOR = "only a tensor has it"
    OTHER = "a tensor does not have it"
    OPEN = "it is passed on, or other types support it too"
    NOTHING = "it shows nothing"


def find_other_use(script: Script, call: ast.Call, name: str) -> str | None:
    """Why what ``call`` answers under this name is no tensor, or may be none; None where every use fits one.

    A name that is only handed on to code which is not understood may hold a dictionary or an object of the model's own.
    """
    is_tensor, doubt = False, None
    for node in ast.walk(script.scope(call)):
        if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        use = read_use(script, node, call)
        if use is Use.OTHER:
            return doubt_of(ast.unparse(script.parents[node]), name, use)
        is_tensor = is_tensor or use is Use.TENSOR
        if use is Use.OPEN:
            doubt = doubt_of("", name, use)
    return None if is_tensor else doubt


def doubt_of(text: str, name: str, use: Use) -> str:
    if use is Use.OTHER:
        line, _, _ = text.strip().partition("\n")
        return f"the script uses `{line}`: {name} may not be a plain tensor"
    return f"the script does not show that {name} is a tensor"


def read_use(script: Script, value: ast.expr, call: ast.Call) -> Use:
    """What the expression around ``value`` (the model's ``call``, or a name that holds its outcome) says of it."""
    parent = script.parents[value]
    above = script.parents.get(parent)
    if isinstance(parent, ast.Attribute):
        known = _TENSOR_METHODS if isinstance(above, ast.Call) and above.func is parent else _TENSOR_ATTRIBUTES
        return Use.TENSOR if parent.attr in known else Use.OTHER
    if isinstance(parent, ast.Subscript) and parent.value is value:
        return _read_index(parent.slice)
    if isinstance(parent, ast.Compare):
        return _read_comparison(parent, value)
    if isinstance(parent, ast.BinOp):
        return Use.OPEN if isinstance(parent.op, ast.BitOr | ast.Mod) else Use.TENSOR
    if isinstance(parent, ast.keyword):
        return Use.OTHER if parent.arg is None else _read_argument(script, above, call)
    if isinstance(parent, ast.Call):
        return _read_argument(script, parent, call)
    if isinstance(parent, ast.Assign) and any(isinstance(one, ast.Tuple | ast.List) for one in parent.targets):
        return Use.OTHER
    if isinstance(parent, ast.Starred | ast.For | ast.comprehension):
        return Use.OTHER
    if isinstance(parent, ast.UnaryOp | ast.AugAssign):
        return Use.OPEN if isinstance(parent.op, ast.Not) else Use.TENSOR
    if isinstance(parent, ast.FormattedValue | ast.Expr):
        return Use.NOTHING
    return Use.OPEN


def _read_index(index: ast.expr) -> Use:
    """``[:, -1]`` has only a tensor; ``[0]`` a tuple and ``["x"]`` a dictionary."""
    if isinstance(index, ast.Tuple):
        return Use.TENSOR
    plain = index.operand if isinstance(index, ast.UnaryOp) else index
    return Use.OTHER if isinstance(plain, ast.Constant) else Use.OPEN


def _read_comparison(comparison: ast.Compare, value: ast.expr) -> Use:
    if any(isinstance(one, ast.Is | ast.IsNot) for one in comparison.ops):
        return Use.OTHER
    if any(isinstance(one, ast.In | ast.NotIn) for one in comparison.ops):
        return Use.OPEN if comparison.left is value else Use.OTHER
    return Use.TENSOR


def _read_argument(script: Script, taker: ast.AST | None, call: ast.Call) -> Use:
    """What it says of a value that ``taker`` gets it as an argument."""
    assert isinstance(taker, ast.Call)
    function = taker.func
    if ast.unparse(function) == ast.unparse(call.func):
        return Use.OTHER  # a hidden state that the model gets back: of an LSTM it is a tuple
    name = script.dotted(function)
    if name is not None:
        package, _, last = name.rpartition(".")
        is_of_tensors = package == "torch.nn.functional" or (package == "torch" and last not in _TORCH_OF_ANYTHING)
        return Use.TENSOR if is_of_tensors else Use.OPEN
    built = [
        node.value
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and any(ast.unparse(one) == ast.unparse(function) for one in node.targets)
    ]
    if built:
        return Use.TENSOR if all(_is_torch_loss(script, one) for one in built) else Use.OPEN
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        if function.id in ("float", "int", "abs"):
            return Use.TENSOR
        return Use.NOTHING if function.id in ("print", "len", "type", "id", "repr", "str") else Use.OTHER
    return Use.OPEN


def _is_torch_loss(script: Script, value: ast.expr) -> bool:
    """``nn.CrossEntropyLoss()``, also moved to a device, or ``F.cross_entropy``."""
    while isinstance(value, ast.Call) and script.dotted(value.func) is None and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if isinstance(value, ast.Call):
        name = script.dotted(value.func) or ""
        return name.startswith("torch.nn.") and name.endswith("Loss")
    return (script.dotted(value) or "").startswith("torch.nn.functional.")
