"""The recorded stack of an allocation -> what made it (core.memory_categories.Origin), from the innermost frame on.

Only frames of torch and of libraries whose code is known say anything; the names of the user's own functions do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hotloop.core.memory_categories import Origin

Frame = tuple[str, str]
"""(file with forward slashes, function)."""

_NATIVE = (
    (re.compile(r"AccumulateGrad|c10d::Reducer::"), Origin.GRADIENT),
    (re.compile(r"[Ww]orkspace"), Origin.TEMPORARY),
    (re.compile(r"torch::autograd::(?:python::Python)?Engine::"), Origin.BACKWARD),
)
"""By the name of a C++ function."""
_NATIVE_COPY = re.compile(r"\bTHPVariable_(?:to|cuda|xpu)\b|\bdispatch_to\b")

_PYTHON = (
    (r"torch/optim/", r"_init_group|_init_state|init_state|__setstate__|load_state_dict", Origin.STATE),
    (r"bitsandbytes/optim/|deepspeed/runtime/|apex/optimizers/", r"_?init\w*state\w*|load_state_dict", Origin.STATE),
    (r"torch/optim/(?!lr_scheduler|swa_utils)",
     r"step|wrapper|_use_grad|_multi_tensor_\w+|_single_tensor_\w+|_fused_\w+",
     Origin.OPTIMIZER),
    (r"(?:bitsandbytes/optim|apex/optimizers|deepspeed/ops)/", r"step|update_step", Origin.OPTIMIZER),
    (r"torch/nn/utils/clip_grad\.py", r".*", Origin.TEMPORARY),
    (r"torch/distributed/fsdp/.*",
     r"_?post_backward\w*|foreach_reduce\w*|_reduce_grad\w*|unshard_grad",
     Origin.GRADIENT),
    (r"torch/nn/parallel/distributed\.py", r"_ddp_init_helper", Origin.GRADIENT),
    (r"torch/distributed/fsdp/.*",
     r"_init\w*param\w*|init_(?:flat|unsharded)_param\w*|flatten_tensors\w*|\w*all_gather\w*|_?unshard\w*|_?alloc\w*|shard",
     Origin.PARAMETER),
    (r"torch/nn/modules/module\.py", r"_apply|to|cuda|xpu|to_empty|load_state_dict|_load_from_state_dict|convert",
     Origin.PARAMETER),
    (r"torch/nn/(?:modules/.*|parameter)\.py",
     r"__init__|__new__|reset_parameters|_reset_parameters|__deepcopy__|materialize",
     Origin.PARAMETER),
    (r"transformers/modeling_utils\.py", r"from_pretrained|_load_\w+|load_\w+", Origin.PARAMETER),
    (r"torch/utils/data/", r".*", Origin.INPUT),
    (r"accelerate/(?:utils/operations|data_loader)\.py", r"send_to_device|__iter__", Origin.INPUT),
    (r"lightning\w*/.*", r"(?:_?)(?:batch_to_device|transfer_batch_to_device|move_data_to_device)", Origin.INPUT),
    (r"transformers/trainer\.py", r"_prepare_inputs?", Origin.INPUT),
    (r"torch/_tensor\.py|torch/autograd/__init__\.py", r"backward|grad", Origin.BACKWARD),
    (r"torch/autograd/graph\.py", r"_engine_run_backward", Origin.BACKWARD),
    (r"torch/_functorch/.*|torch/utils/checkpoint\.py|torch/distributed/fsdp/.*",
     r"backward|unpack_hook|_?pre_backward\w*",
     Origin.BACKWARD),
    (r"torch/nn/modules/module\.py", r"_call_impl|_wrapped_call_impl|_slow_forward|inner", Origin.FORWARD),
)  # fmt: skip
_COMPILED = tuple((re.compile(f"(?:^|/)(?:{file})"), re.compile(name), origin) for file, name, origin in _PYTHON)
_FUNCTION = re.compile(r"(?:^|/)torch/autograd/function\.py$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOrigin:
    """What a stack says."""

    origin: Origin
    is_nested: bool
    """In a backward, but made by something else."""
    has_native: bool
    """Whether C++ frames were recorded."""


UNTOLD = StackOrigin(origin=Origin.UNTOLD, is_nested=False, has_native=False)


def classify_origin(frames: Sequence[Frame]) -> StackOrigin:
    """Of a stack, the innermost frame first; UNTOLD without frames."""
    if not frames:
        return UNTOLD
    innermost = Origin.ELSEWHERE
    in_backward = has_native = copies = False
    inner_function = ""
    for file, function in frames:
        if file.endswith(".py") or file.startswith("<"):
            # A function of the user's (torch.autograd.Function) is called in its forward and in its backward alike.
            called_back = inner_function == "backward" and _FUNCTION.search(file) is not None
            found = Origin.BACKWARD if called_back else _read_python(file, function)
            inner_function = function.rpartition(".")[2]
        else:
            has_native = True
            copies = copies or _NATIVE_COPY.search(function) is not None
            found = next((origin for pattern, origin in _NATIVE if pattern.search(function)), Origin.ELSEWHERE)
        in_backward = in_backward or found is Origin.BACKWARD
        if innermost is Origin.ELSEWHERE:
            innermost = found
    if innermost is Origin.FORWARD and in_backward:
        return StackOrigin(origin=Origin.RECOMPUTE, is_nested=False, has_native=has_native)
    if innermost is Origin.ELSEWHERE and copies:
        innermost = Origin.COPY
    nested = in_backward and innermost not in (Origin.BACKWARD, Origin.GRADIENT)
    return StackOrigin(origin=innermost, is_nested=nested, has_native=has_native)


@lru_cache(maxsize=1 << 16)
def _read_python(file: str, function: str) -> Origin:
    function = function.rpartition(".")[2]  # some versions of torch write the qualified name
    for files, functions, origin in _COMPILED:  # the caller cuts names, so that no pattern takes long
        if functions.fullmatch(function) is not None and files.search(file) is not None:
            return origin
    return Origin.ELSEWHERE
