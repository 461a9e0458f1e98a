"""A user's module and batch -> the memory of its training steps, by fake tensors: none of it is allocated.

In the user's folder, with the user's Python. The model is built, and run for two steps (optimizer states exist from
the second on), on fake CPU tensors; for a CUDA device the operators that keep other memory there get CUDA's rule
(cuda_imitation.py). Tensors of a fake CUDA device would end the process on a torch without CUDA: there are none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.utils._pytree import tree_map_only

from hotloop.measure.probe.cuda_imitation import GRANULE_BYTES, imitate_cuda
from hotloop.measure.probe.programs import BadRequest, load_function
from hotloop.measure.probe.storage_ledger import StorageLedger

STEPS = 2
OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adam": ("Adam", {}),
    "sgd": ("SGD", {"momentum": 0.9}),
    "plain-sgd": ("SGD", {}),
}
VALUE_ERRORS = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """The memory of the steps that the request describes."""
    begin_s = time.monotonic()
    on_cuda = request["device"] == "cuda"
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # torch's own, in copied modules
    imitation: AbstractContextManager[list[str]] = imitate_cuda() if on_cuda else contextlib.nullcontext([])
    with imitation as changed:
        found = trace_steps(request)
    return found | {"imitated": changed, "seconds": time.monotonic() - begin_s, "torch": torch.__version__}


class FakeMode(fake_tensor.FakeTensorMode):  # type: ignore[no-untyped-call]
    """A module that is copied stays in its mode (torch 2.13 copies the mode too, and then shares no storage)."""

    def __deepcopy__(self, memo: object) -> FakeMode:
        return self


@contextlib.contextmanager
def plain_conversion() -> Iterator[None]:
    """``module.to(...)`` and its kin replace parameters and buffers: torch would swap them, which fake ones refuse."""
    original = torch.nn.Module._apply
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    inside: list[torch.nn.Module] = []

    def apply(module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        inside.append(module)
        for child in module.children() if recurse else ():
            child._apply(function)  # type: ignore[no-untyped-call]
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None:
                    if id(old) not in replaced:
                        with torch.no_grad():
                            new = function(old)
                        is_parameter = isinstance(old, torch.nn.Parameter)
                        replaced[id(old)] = old, torch.nn.Parameter(new, old.requires_grad) if is_parameter else new
                    tensors[name] = replaced[id(old)][1]  # type: ignore[assignment]
        inside.pop()
        if not inside:  # until here tied tensors are found again
            replaced.clear()
        return module

    torch.nn.Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = original  # type: ignore[method-assign]


def trace_steps(request: Mapping[str, Any]) -> dict[str, Any]:
    """The memory held while the model was built and trained."""
    build = load_function(request["file"], request["function"])
    batch = request["batch"]
    make_batch = load_function(batch["file"], batch["function"]) if "function" in batch else None
    ledger = StorageLedger(1, WORKSPACES, KEPT) if request["device"] == "cpu" else StorageLedger(GRANULE_BYTES, {}, {})
    notes: list[str] = []
    with (
        FakeMode(allow_non_fake_inputs=True) as mode,
        explain(request["function"]),
        plain_conversion(),
        ledger,
    ):
        model = build()
        if not isinstance(model, torch.nn.Module):
            raise BadRequest(f"{request['function']}() returned {type(model).__name__}; it must return a module")
        if request["precision"] == "pure-bf16":
            model.to(torch.bfloat16)
        blocks = find_blocks(model)
        if blocks is not None:
            ledger.walk.blocks = name_positions(blocks[1])
        sizes = {
            "parameters": ledger.mark(list(model.parameters()), "parameters"),
            "buffers": ledger.mark(list(model.buffers()), "buffers"),
        }
        batch = make_arguments(request, mode, make_batch)
        sizes["inputs"] = ledger.take_in(batch, "inputs")

        def note_gradient(parameter: torch.Tensor) -> None:
            ledger.mark(parameter.grad, "gradients")

        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(note_gradient)  # type: ignore[no-untyped-call]
        sizes |= train(request, model, batch, ledger, notes)
    return {
        "sizes": sizes,
        "peaks": ledger.peaks(least_step=1),
        "params": sum(one.numel() for one in model.parameters()),
        "trained_params": sum(one.numel() for one in model.parameters() if one.requires_grad),
        "notes": list(dict.fromkeys(notes)),
    }


def make_arguments(
    request: Mapping[str, Any], mode: Any, make_batch: Callable[[], Any] | None
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of the model, as fake tensors."""
    if make_batch is None:
        given = [
            (one["name"], torch.zeros(one["shape"], dtype=getattr(torch, one["dtype"])))
            for one in request["batch"]["tensors"]
        ]
        unnamed, named = [one for name, one in given if name is None], {name: one for name, one in given if name}
    else:
        with torch.utils._python_dispatch._disable_current_modes():
            made = make_batch()
        made = tree_map_only(torch.Tensor, mode.from_tensor, made)
        unnamed = list(made) if isinstance(made, (tuple, list)) else [] if isinstance(made, Mapping) else [made]
        named = dict(made) if isinstance(made, Mapping) else {}
    if request["precision"] == "pure-bf16":
        unnamed, named = tree_map_only(torch.Tensor, _to_bf16, (unnamed, named))
    return unnamed, named


def train(
    request: Mapping[str, Any], model: torch.nn.Module, batch: Any, ledger: StorageLedger, notes: list[str]
) -> dict[str, int]:
    """Steps as most scripts have them: output and loss stay until the next ones replace them."""
    name, settings = OPTIMIZERS[request["optimizer"]]
    trained = [one for one in model.parameters() if one.requires_grad]
    if not trained:
        raise BadRequest("no parameter of the model requires a gradient: there is nothing to train")
    foreach = request["device"] == "cuda"
    optimizer = getattr(torch.optim, name)(trained, lr=1e-3, foreach=foreach, **settings)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(request["precision"])
    sizes: dict[str, int] = {}
    for step in range(1, STEPS + 1):
        ledger.step, ledger.phase, ledger.walk.outside = step, "forward", "before"
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext():
            output = model(*batch[0], **batch[1])
            ledger.phase = "loss"
            loss, note = find_loss(output)
        notes.append(note)
        ledger.mark_held(("forward", "loss"), "activations")
        ledger.phase = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
        sizes["gradients"] = ledger.mark([one.grad for one in trained if one.grad is not None], "gradients")
        ledger.phase = "optimizer"
        optimizer.step()
        sizes["optimizer_states"] = ledger.mark(list(optimizer.state.values()), "optimizer_states")
    return sizes


def find_loss(output: Any) -> tuple[torch.Tensor, str]:
    """The tensor that backward starts from, and how it was found."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad:
        if own.dim() == 0:
            return own, "the loss is the output's own"
        return own.mean(), f"the output's own loss [{_draw_shape(own)}] is not a scalar: its mean is used"
    tensors = [one for one in list_tensors(output) if one.requires_grad]
    if not tensors:
        raise BadRequest(f"the model returned {type(output).__name__} without a tensor that requires a gradient")
    scalar = next((one for one in tensors if one.dim() == 0), None)
    if scalar is not None:
        return scalar, "the loss is the first scalar of the output"
    shape = _draw_shape(tensors[0])
    return tensors[0].mean(), f"the model returns no loss: the mean of its output [{shape}] is used"


def _draw_shape(tensor: torch.Tensor) -> str:
    return ", ".join(map(str, tensor.shape))


def list_tensors(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's output in order: of tuples, lists, mappings and dataclasses, also within each other."""
    if isinstance(output, torch.Tensor):
        yield output
        return
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, (tuple, list)):
        parts = output
    elif dataclasses.is_dataclass(output):
        parts = [getattr(output, field.name) for field in dataclasses.fields(output)]
    for part in parts:
        yield from list_tensors(part)


def _to_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


# ---- repeated blocks


def find_blocks(model: torch.nn.Module) -> tuple[str, Any] | None:
    """Name and container (ModuleList or Sequential) of the most parameters in children of one class and shape."""
    best: tuple[int, str, Any] | None = None
    for name, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) or len(module) < 2:
            continue
        looks = {
            (type(child), tuple((key, one.shape) for key, one in child.named_parameters()))
            for child in module.children()
        }
        count = sum(one.numel() for one in module.parameters())
        if len(looks) == 1 and count and (best is None or count > best[0]):
            best = count, name, module
    return None if best is None else best[1:]


def name_positions(blocks: Sequence[torch.nn.Module]) -> dict[int, str]:
    """id of each block -> first, middle or last."""
    last = len(blocks) - 1
    return {id(one): "first" if not i else "last" if i == last else "middle" for i, one in enumerate(blocks)}


# ---- what operators of the CPU allocate and fake tensors do not tell (oneDNN)


def convolution_backward_bytes(args: Sequence[Any]) -> int:
    """Blocked copies of the output's gradient and of the input, in addition to the gradients that it returns."""
    return int(args[0].nbytes + args[1].nbytes)


def rnn_layer_bytes(args: Sequence[Any]) -> tuple[int, int]:
    """The work space that backward needs (output 3), linear in the input's length: asked of real layers of 1 and 2."""
    sizes = []
    with torch.utils._python_dispatch._disable_current_modes():
        for length in (1, 2):
            real = [torch.zeros(one.shape, dtype=one.dtype) if isinstance(one, torch.Tensor) else one for one in args]
            real[0] = torch.zeros(length, *args[0].shape[1:], dtype=args[0].dtype)
            sizes.append(torch.ops.aten.mkldnn_rnn_layer(*real)[3].nbytes)
    return 3, sizes[0] + (args[0].shape[0] - 1) * (sizes[1] - sizes[0])


WORKSPACES: Mapping[str, Callable[[Sequence[Any]], int]] = {"convolution_backward": convolution_backward_bytes}
KEPT: Mapping[str, Callable[[Sequence[Any]], tuple[int, int]]] = {"mkldnn_rnn_layer": rnn_layer_bytes}


# ---- results and errors


@contextlib.contextmanager
def explain(function: str) -> Iterator[None]:
    """An error of the user's code -> one BadRequest with its line."""
    try:
        yield
    except BadRequest:
        raise
    except VALUE_ERRORS as error:
        raise BadRequest(
            f"{_user_line(error)} needs the values of a tensor ({error.func}), and a plan has only shapes: compute with"
            " tensors of fixed shapes there (torch.where, a fixed capacity of each expert), or use Python numbers"
        ) from error
    except Exception as error:
        what = str(error).splitlines()[0][:300] if str(error) else ""
        advice = "; leave the model on the CPU: --gpu names the device to plan for" if "cuda" in what.lower() else ""
        where = _user_line(error) or f"{function}()"
        raise BadRequest(f"{where} raised {type(error).__name__}: {what}{advice}") from error


def _user_line(error: BaseException) -> str:
    """FILE:LINE (its text) of the innermost frame outside of torch and this folder."""
    skipped = (str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep, "<")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(skipped)]
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""
