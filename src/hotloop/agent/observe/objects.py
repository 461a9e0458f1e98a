"""Loaders, models and optimizers -> facts, read once an object, of what is torch's own by exact type.

Attributes of an object are read from its ``__dict__`` past its class, those of a class from the class's own
dictionary: no property, method or attribute hook of a person's code runs. Unreadable facts are None: unknown.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter, OrderedDict
from types import FunctionType, MethodType
from typing import Any

import torch

from hotloop.core.events import DRAWS, HIDES_MODULES, LEARNS, OPAQUE
from hotloop.core.stack_layout import Place

from .inputs import dict_of, has_plain_keys, is_kind, is_tensor, key_of, module_of_type, type_name
from .places import is_user_file, place_of_callable

MOST_MODULES, MOST_TENSORS, MOST_BASES = 20_000, 100_000, 12
MOST_WRAPPERS = 8
"""Modules at the top of a model in which a DDP is looked for."""
_mro_of = type.__dict__["__mro__"].__get__
_names_of = type.__dict__["__dict__"].__get__
_get = dict.get
_short_name = type.__dict__["__name__"].__get__
_DROPOUTS = frozenset(
    key_of(kind) for name in dir(torch.nn) if "Dropout" in name and isinstance(kind := getattr(torch.nn, name), type)
)
_DRAWING = frozenset(
    (
        "dropout", "rand", "randn", "randint", "rand_like", "randn_like", "bernoulli", "multinomial", "rsample",
        "sample", "dropout_", "bernoulli_", "normal_", "uniform_", "exponential_", "random_", "randperm",
        "gumbel_softmax",
    )
)  # fmt: skip
"""Names in a forward's code by which it may draw random numbers."""
_RECURRENT = (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU)
_RECURRENTS = frozenset(map(key_of, _RECURRENT))
_TABLES = frozenset((key_of(torch.nn.Embedding), key_of(torch.nn.EmbeddingBag)))
_TIME_FIRST = _RECURRENTS | {key_of(torch.nn.MultiheadAttention), key_of(torch.nn.TransformerEncoderLayer)}
"""Classes by their addresses: a metaclass may compare and hash as it likes."""
_SHARDING = ("FSDPModule", "FullyShardedDataParallel")
_SIZED = (list, tuple, range)


def function_of(kind: type, name: str) -> FunctionType | None:
    """The plain function that a class has under a name, its own or inherited."""
    for owner in _mro_of(kind)[:MOST_BASES]:
        value = _names_of(owner).get(name)
        if value is not None:
            return value if type(value) is FunctionType else None
    return None


def _plain(value: Any, *kinds: type) -> Any:
    return value if any(type(value) is kind for kind in kinds) else None


def user_place_of(function: Any) -> Place | None:
    """Where a plain function of the user's was defined; None for a library's, and for other callables."""
    if type(function) is not FunctionType:
        return None
    place = place_of_callable(function)
    return place if place is not None and is_user_file(place[0]) else None


def describe_loader(loader: Any, where: Place | None) -> dict[str, Any]:
    """Settings of a DataLoader."""
    held = dict_of(loader)
    dataset, iterable = held.get("dataset"), _plain(held.get("_dataset_kind"), int) == 1
    inner, depth = dataset, 0
    names = ("__iter__",) if iterable else ("__getitems__", "__getitem__")
    while depth < 4:  # torch's Subset and its kin: the dataset inside does the work
        below = dict_of(inner).get("dataset")
        if below is None or not module_of_type(type(inner)).startswith("torch.utils.data"):
            break
        inner, depth = below, depth + 1
    fetch = next((f for name in names if (f := function_of(type(inner), name)) is not None), None)
    collate: Any = held.get("collate_fn")
    sampler = dict_of(held.get("batch_sampler"))
    batch_size = _plain(held.get("batch_size"), int)
    if batch_size is None and type(held.get("batch_sampler")) is torch.utils.data.BatchSampler:
        batch_size = _plain(sampler.get("batch_size"), int)
    samples = _samples_of(held.get("sampler"))
    length = None
    if samples is not None and batch_size and type(held.get("batch_sampler")) is torch.utils.data.BatchSampler:
        length = samples // batch_size if _plain(held.get("drop_last"), bool) else -(-samples // batch_size)
    context = held.get("_DataLoader__multiprocessing_context")
    method = None
    if _plain(held.get("num_workers"), int):
        own = dict_of(context).get("_actual_context", context)
        method = _get(dict(_names_of(type(own))), "_name") if own is not None else _default_start_method()
    is_function = type(collate) is FunctionType
    return {
        "where": where,
        "num_workers": _plain(held.get("num_workers"), int) or 0,
        "batch_size": batch_size,
        "first_batch_size": None if not batch_size else batch_size if samples is None else min(batch_size, samples),
        "pin_memory": bool(_plain(held.get("pin_memory"), bool)),
        "persistent_workers": bool(_plain(held.get("persistent_workers"), bool))
        or bool(_plain(dict_of(held.get("_get_iterator")).get("persistent"), bool)),
        "prefetch_factor": _plain(held.get("prefetch_factor"), int),
        "drop_last": bool(_plain(held.get("drop_last"), bool)),
        "start_method": _plain(method, str),
        "iterable": iterable,
        "length": length,
        "dataset": type_name(type(inner)),
        "fetch_where": user_place_of(fetch),
        "collate": str(collate.__qualname__) if is_function else type_name(type(collate)),
        "collate_where": user_place_of(collate)
        if is_function
        else user_place_of(function_of(type(collate), "__call__")),
    }


def _samples_of(sampler: Any) -> int | None:
    """How many samples one of torch's own samplers draws from a source of plain length; None where nothing says."""
    data = torch.utils.data
    if type(sampler) is not data.SequentialSampler and type(sampler) is not data.RandomSampler:
        return None
    held = dict_of(sampler)
    if type(held.get("_num_samples")) is int:
        return int(held["_num_samples"])
    source = held.get("data_source")
    if any(type(source) is kind for kind in _SIZED):
        return len(source)  # type: ignore[arg-type]
    inside = dict_of(source)
    if type(source) is data.TensorDataset and type(inside.get("tensors")) is tuple and inside["tensors"]:
        source = inside["tensors"][0]
    elif type(source) is data.Subset and any(type(inside.get("indices")) is kind for kind in _SIZED):
        return len(inside["indices"])
    tensor: Any = source
    return int(tensor.size(0)) if is_tensor(tensor) and tensor.dim() else None


def _default_start_method() -> str | None:
    context = sys.modules.get("multiprocessing.context")
    default = dict_of(getattr(context, "_default_context", None)).get("_actual_context")
    name = None if default is None else _names_of(type(default)).get("_name")
    return name if type(name) is str else "fork" if sys.version_info < (3, 14) else "forkserver"


def worker_pids(iterator: Any) -> list[int]:
    """Numbers of the processes that a DataLoader's iterator started."""
    pids = []
    for worker in (_plain(dict_of(iterator).get("_workers"), list) or ())[:64]:
        pid = dict_of(dict_of(worker).get("_popen")).get("pid")
        if type(pid) is int:
            pids.append(pid)
    return pids


class ModuleTree:
    """The modules below one, as shown by torch's own dictionaries, and their tensors, each once."""

    def __init__(self, root: Any) -> None:
        self.kinds: list[tuple[type, dict[str, Any]]] = []
        self.tensors: list[Any] = []
        self.is_whole = True
        seen, waiting = {key_of(root)}, [root]
        known: set[int] = set()
        while waiting:
            module = waiting.pop()
            held = dict_of(module)
            self.kinds.append((type(module), held))
            parameters = held.get("_parameters")
            for value in dict.values(parameters) if isinstance(parameters, dict) else ():
                if key_of(value) not in known and value is not None:
                    known.add(key_of(value))
                    self.tensors.append(value)
            children = held.get("_modules")
            below = list(dict.values(children)) if isinstance(children, dict) else []
            for child in reversed(below):
                if child is not None and key_of(child) not in seen:
                    seen.add(key_of(child))
                    waiting.append(child)
            if len(self.kinds) >= MOST_MODULES or len(self.tensors) >= MOST_TENSORS:
                self.is_whole = False
                break

    def is_sharded(self) -> bool:
        """Whether FSDP has its weights in parts."""
        return any(_is_sharding(kind) for kind in {key_of(kind): kind for kind, _ in self.kinds}.values())


def look_at_module(module: Any) -> tuple[int, ModuleTree]:
    """Flags of FORWARD_IN that stay the same for a module, and what is below it."""
    tree = ModuleTree(module)
    flags = LEARNS if tree.tensors else 0
    if not all(map(is_tensor, tree.tensors)):
        flags |= OPAQUE
    if not flags and any(
        (type(value) is list or type(value) is tuple)
        and any(is_kind(type(part), torch.nn.Module) for part in value[:16])
        for value in list(dict_of(module).values())[:200]
    ):
        flags |= HIDES_MODULES
    for kind, held in tree.kinds:
        if key_of(kind) in _DROPOUTS:
            if _plain(held.get("p"), float, int):
                flags |= DRAWS
                break
            continue
        if module_of_type(kind).startswith("torch.nn"):
            if key_of(kind) in _RECURRENTS and _plain(held.get("dropout"), float, int):
                flags |= DRAWS
            continue
        forward = function_of(kind, "forward")
        if "Drop" in type_name(kind) or (forward is not None and not _DRAWING.isdisjoint(forward.__code__.co_names)):
            flags |= DRAWS
            break
    return flags, tree


def describe_model(module: Any, tree: ModuleTree) -> dict[str, Any]:
    """Size, dtype and device of a module with parameters. A tensor subclass counts as a single tensor."""
    inner = module
    for name in ("_orig_mod", "module"):
        below = dict_of(inner).get("_modules")
        inner = below.get(name, inner) if isinstance(below, dict) else inner
    plain = [(tensor, sizes) for tensor in tree.tensors if (sizes := _bytes_and_elements(tensor)) is not None]
    trainable = [tensor for tensor, _ in plain if tensor.requires_grad] or [tensor for tensor, _ in plain]
    first = trainable[0] if trainable else None
    forward = function_of(type(inner), "forward")
    known = tree.is_whole and len(plain) == len(tree.tensors)
    return {
        "class": type_name(type(inner)),
        "parameters": sum(elements for _, (_, elements) in plain) if known else None,
        "tensors": len(tree.tensors),
        "bytes": sum(size for _, (size, _) in plain) if known else None,
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "device": None if first is None else first.device.type,
        "device_index": None if first is None else first.device.index,
        "where": None if forward is None else place_of_callable(forward),
        "recurrent": any(key_of(kind) in _RECURRENTS for kind, _ in tree.kinds),
        "sharded": tree.is_sharded(),
        "time_first": any(
            key_of(kind) in _TIME_FIRST and held.get("batch_first") is False for kind, held in tree.kinds
        ),
        "hooks": places_of_hooks(tree),
        "dense_table": largest_table(tree),
        "learning_bytes": sum(size for tensor, (size, _) in plain if tensor.requires_grad) if known else None,
    }


def largest_table(tree: ModuleTree) -> list[int] | None:
    """Rows and width of the largest trainable ``nn.Embedding`` or ``EmbeddingBag`` with dense gradients, of those whose
    weight no other module has: an output layer uses all rows."""
    dicts = [held.get("_parameters") for _, held in tree.kinds]
    values = [list(dict.values(own)) if isinstance(own, dict) else [] for own in dicts]
    holders = Counter(key_of(value) for own in values for value in own if value is not None)
    largest = None
    for (kind, held), own in zip(tree.kinds, values, strict=True):
        if key_of(kind) in _TABLES and held.get("sparse") is False and own and holders[key_of(own[0])] == 1:
            weight = own[0]
            if is_tensor(weight) and weight.requires_grad and weight.dim() == 2:
                rows, width = int(weight.size(0)), int(weight.size(1))
                if largest is None or rows * width > largest[0] * largest[1]:
                    largest = [rows, width]
    return largest


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MOST_HOOKS = 16


def places_of_hooks(tree: ModuleTree) -> list[Place]:
    """Where the user's functions that are registered as hooks of modules are defined, each once."""
    places: dict[Place, None] = {}
    for _, held in tree.kinds:
        for name in _HOOKS:
            hooks = _plain(held.get(name), OrderedDict, dict)
            for hook in () if not hooks else list(hooks.values()):
                function = hook.func if type(hook) is functools.partial else hook
                function = function.__func__ if type(function) is MethodType else function
                if type(function) is FunctionType and is_user_file(function.__code__.co_filename):
                    code = function.__code__
                    places[os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name] = None
                if len(places) >= MOST_HOOKS:
                    return list(places)
    return list(places)


def _is_sharding(kind: type) -> bool:
    return any(
        _short_name(owner) in _SHARDING and module_of_type(owner).startswith("torch.") for owner in _mro_of(kind)
    )


def _bytes_and_elements(tensor: Any) -> tuple[int, int] | None:
    """Size of a plain tensor, or of this rank's part of a DTensor; None for everything else."""
    if not is_tensor(tensor):
        return _of_sharded(tensor)
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    elements = tensor.numel()
    return elements * tensor.element_size(), elements


def _of_sharded(tensor: Any) -> tuple[int, int] | None:
    module = sys.modules.get("torch.distributed.tensor")
    kinds = (getattr(module, "DTensor", None),) if module is not None else ()
    if not any(type(tensor) is kind for kind in kinds):
        return None
    local: Any = dict_of(tensor).get("_local_tensor")
    with torch._C.DisableTorchFunctionSubclass():
        elements = torch.Tensor.numel(tensor)
    return (local.numel() * local.element_size(), elements) if is_tensor(local) else None


_SETTINGS = frozenset(("momentum", "weight_decay", "amsgrad", "nesterov", "dampening", "centered", "maximize"))
"""Settings that change what a step computes; the probe repeats them."""


def describe_optimizer(optimizer: Any, where: Place | None) -> dict[str, Any]:
    """Settings and parameter sizes of an optimizer."""
    groups = [
        g for g in _plain(dict_of(optimizer).get("param_groups"), list) or () if type(g) is dict and has_plain_keys(g)
    ]
    held = [p for g in groups for p in (_plain(g.get("params"), list) or ())[:MOST_TENSORS] if is_tensor(p)]
    numels: dict[int, int] = {}
    for p in held:
        numels[p.numel()] = numels.get(p.numel(), 0) + 1
    first, kind = groups[0] if groups else {}, type(optimizer)
    torchs = getattr(torch.optim, _short_name(kind), None)
    flags = {name: _plain(first.get(name), bool) for name in ("foreach", "fused", "capturable")}
    return {
        "class": type_name(kind),
        "own_class": not (isinstance(torchs, type) and is_kind(kind, torchs)),
        "where": where,
        **flags,
        "groups": len(groups),
        "tensors": len(held),
        "parameters": sum(n * c for n, c in numels.items()),
        "device": held[0].device.type if held else None,
        "dtype": str(held[0].dtype).removeprefix("torch.") if held else None,
        "state_steps": _state_steps(optimizer),
        "settings": {k: v for k, v in first.items() if k in _SETTINGS and _plain(v, bool, int, float) is not None},
        "numels": sorted(([n, c] for n, c in numels.items()), reverse=True)[:64],
    }


def _states_of(optimizer: Any) -> list[dict[Any, Any]]:
    states = dict_of(optimizer).get("state")
    return (
        [s for s in list(dict.values(states)) if type(s) is dict and has_plain_keys(s)]
        if isinstance(states, dict)
        else []
    )


def _state_steps(optimizer: Any) -> int | None:
    """Steps that the optimizer's own state counts, those of a loaded checkpoint included; None where it counts none."""
    for state in _states_of(optimizer)[:1]:
        step = state.get("step")
        if type(step) is int:
            return step
        if type(step) is torch.Tensor and step.device.type == "cpu" and step.numel() == 1 and not _modes():
            return int(step.item())
    return None


def _modes() -> bool:
    """Whether anything would notice an operator or a function of torch."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def held_bytes(optimizer: Any) -> dict[str, int]:
    """Bytes of the parameters that an optimizer has, of their gradients once all exist, and of its state, here."""
    groups = [
        g for g in _plain(dict_of(optimizer).get("param_groups"), list) or () if type(g) is dict and has_plain_keys(g)
    ]
    parameters = [p for g in groups for p in (_plain(g.get("params"), list) or ())[:MOST_TENSORS]]
    states = [value for state in _states_of(optimizer)[:MOST_TENSORS] for value in dict.values(state)]
    return {
        "parameter_bytes": _sum_bytes(parameters),
        "gradient_bytes": _sum_bytes([p for p in parameters if (is_tensor(p) and p.requires_grad) or not is_tensor(p)]),
        "optimizer_state_bytes": _sum_bytes(states),
    }


def _sum_bytes(tensors: list[Any]) -> int:
    return sum(sizes[0] for tensor in tensors if (sizes := _bytes_and_elements(tensor)) is not None)


def describe_ddp(ddp: Any, where: Place | None) -> dict[str, Any] | None:
    """Settings of a DistributedDataParallel, and what its reducer says of its buckets."""
    held = dict_of(ddp)
    logger = held.get("logger")
    if type(logger) is not torch._C._distributed_c10d.Logger:
        return None
    told = logger._get_ddp_logging_data()
    data: dict[str, Any] = {**told.strs_map, **told.ints_map}
    buckets = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
    learning = [p for p in ModuleTree(ddp).tensors if is_tensor(p) and p.requires_grad]
    unused = data.get("unused_parameter_size")
    return {
        "kind": "ddp",
        "where": where,
        "find_unused_parameters": bool(_plain(held.get("find_unused_parameters"), bool)),
        "static_graph": bool(_plain(held.get("static_graph"), bool)),
        "gradient_as_bucket_view": bool(_plain(held.get("gradient_as_bucket_view"), bool)),
        "bucket_cap_bytes": _plain(held.get("bucket_bytes_cap"), int),
        "bucket_sizes": [int(s) for s in buckets.replace(" ", "").split(",") if s.isdigit()],
        "parameter_bytes": _sum_bytes(learning),
        "parameter_tensors": len(learning),
        "unused_tensors": unused if type(unused) is int else None,
        "backend": data.get("backend_name"),
        "comm_hook": data.get("comm_hook") or None,
        "scan_ns_total": None,
        "scan_count": 0,
    }


def ddp_times(ddp: Any) -> tuple[int, dict[str, Any]] | None:
    """The iteration whose times DDP's reducer took last, as torch samples them, and the times in ns."""
    logger = dict_of(ddp).get("logger")
    if type(logger) is not torch._C._distributed_c10d.Logger:
        return None
    data = logger._get_ddp_logging_data().ints_map
    return int(data.get("iteration", -1)), {
        "kind": "ddp_stats",
        "forward_ns": data.get("forward_compute_time"),
        "backward_compute_ns": data.get("backward_compute_time"),
        "comm_ns": data.get("backward_comm_time"),
        "overlap_ns": data.get("backward_compute_comm_overlap_time"),
    }


def path_to_parallel(module: Any, most: int) -> tuple[str, ...] | None:
    """The way by ``_modules`` to what spreads the gradients of a module, among the ``most`` modules at its top: a DDP,
    which a framework may have wrapped, or the first of FSDP2's parameter groups; None where there is none."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), module)]
    for _ in range(most):
        if not waiting:
            return None
        path, part = waiting.pop()
        if spreads_gradients(part) is not None:
            return path if all(type(name) is str for name in path) else None
        children = dict_of(part).get("_modules")
        if isinstance(children, dict):
            waiting += [
                ((*path, name), child) for name, child in reversed(list(dict.items(children))) if child is not None
            ]
    return None


def follow(module: Any, path: tuple[str, ...]) -> Any:
    """The module at the end of a path, None where it is not there any more."""
    for name in path:
        children = dict_of(module).get("_modules")
        module = dict.get(children, name) if isinstance(children, dict) else None
    return module


def path_to_weights(module: Any) -> tuple[str, ...] | None:
    """The way by ``_modules`` to the first trainable parameter of a module, and its name; None where there is none."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), module)]
    for _ in range(MOST_MODULES):
        if not waiting:
            return None
        path, part = waiting.pop()
        held = dict_of(part)
        own, children = held.get("_parameters"), held.get("_modules")
        for name, value in dict.items(own) if isinstance(own, dict) else ():
            if value is not None and is_tensor(value) and value.requires_grad:
                return (*path, name) if all(type(part) is str for part in (*path, name)) else None
        if isinstance(children, dict):
            waiting += [
                ((*path, name), child) for name, child in reversed(list(dict.items(children))) if child is not None
            ]
    return None


def weights_version(module: Any, path: tuple[str, ...]) -> int | None:
    """How often torch changed that parameter in place; None where it is not there any more."""
    own = dict_of(follow(module, path[:-1])).get("_parameters")
    value = dict.get(own, path[-1]) if isinstance(own, dict) else None
    return value._version if value is not None and is_tensor(value) else None


def _reduces(part: Any) -> bool | None:
    """Whether the group of an FSDP2 module reduces gradients; None without a group."""
    state_of = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if state_of is None or not _is_sharding(type(part)):
        return None
    state = state_of._get_module_fsdp_state(part)
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    value = getattr(groups[0], "reduce_grads", None) if groups else None
    return value if type(value) is bool else None


def spreads_gradients(module: Any) -> bool | None:
    """Whether a DDP or FSDP2 module spreads gradients in its next backward; None for other modules."""
    kind, held = type(module), dict_of(module)
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is not None and is_kind(kind, parallel.DistributedDataParallel):
        keeps_local = dict_of(held.get("forward")).get("keeps_local")  # set by an applied technique
        value = held.get("require_backward_grad_sync")
        return None if type(value) is not bool else value and not (keeps_local is not None and keeps_local())
    return _reduces(module)
