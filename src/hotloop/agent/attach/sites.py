"""Sites: the places in torch that hotloop patches, each wrapped once by an ordered list of subscribers.

A subscriber is ``wrap(original) -> replacement``. They are applied in order, the first one innermost; what changes a
call (apply) goes outside what times it (observe). A site that this torch lacks is reported, never an error.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Wrap = Callable[[Any], Any]


ALIASES = (("torch*", "*"),)
"""In place of a site's aliases: every loaded module of torch that holds the same object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An attribute to replace: ``path`` is dotted inside ``module``; ``aliases`` are further places of the same object.

    ``module`` is patched when it is imported, at once when it already is.
    """

    id: str
    module: str
    path: str
    aliases: tuple[tuple[str, str], ...] = ()


COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "send", "recv",
    "batch_isend_irecv", "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
    "all_gather_coalesced", "all_reduce_coalesced",
)  # fmt: skip

_C10D = "torch.distributed.distributed_c10d"

SITES: tuple[Site, ...] = (
    Site(id="loader-init", module="torch.utils.data.dataloader", path="DataLoader.__init__"),
    Site(id="loader-iter", module="torch.utils.data.dataloader", path="DataLoader.__iter__"),
    Site(id="loader-next", module="torch.utils.data.dataloader", path="_BaseDataLoaderIter.__next__"),
    Site(id="fetch-map", module="torch.utils.data._utils.fetch", path="_MapDatasetFetcher.fetch"),
    Site(id="fetch-iterable", module="torch.utils.data._utils.fetch", path="_IterableDatasetFetcher.fetch"),
    Site(id="module-call", module="torch.nn.modules.module", path="Module.__call__"),
    Site(
        id="run-backward",
        module="torch.autograd.graph",
        path="_engine_run_backward",
        aliases=(("torch.autograd", "_engine_run_backward"),),
    ),
    Site(id="optimizer-init", module="torch.optim.optimizer", path="Optimizer.__init__"),
    Site(id="scaler-init", module="torch.amp.grad_scaler", path="GradScaler.__init__"),
    Site(id="scaler-step", module="torch.amp.grad_scaler", path="GradScaler.step"),
    Site(id="scaler-unscale", module="torch.amp.grad_scaler", path="GradScaler.unscale_"),
    Site(id="scaler-update", module="torch.amp.grad_scaler", path="GradScaler.update"),
    Site(id="anomaly", module="torch.autograd.anomaly_mode", path="set_detect_anomaly.__init__"),
    Site(id="graph-call", module="torch._inductor.output_code", path="CompiledFxGraph.__call__"),
    Site(id="save", module="torch.serialization", path="save", aliases=(("torch", "save"),)),
    Site(id="save-safetensors", module="safetensors.torch", path="save_file"),
    Site(
        id="save-sharded",
        module="torch.distributed.checkpoint.state_dict_saver",
        path="save",
        aliases=(("torch.distributed.checkpoint", "save"),),
    ),
    Site(id="checkpoint-reentrant", module="torch.utils.checkpoint", path="CheckpointFunction.forward"),
    Site(id="checkpoint-plain", module="torch.utils.checkpoint", path="_checkpoint_without_reentrant_generator"),
    Site(id="ddp-init", module="torch.nn.parallel.distributed", path="DistributedDataParallel.__init__"),
    Site(
        id="work-wait",
        module=_C10D,
        path="Work.wait",
    ),
    Site(id="compile", module="torch", path="compile"),
    *(
        Site(id=f"collective-{name}", module=_C10D, path=name, aliases=(("torch.distributed", name),))
        for name in COLLECTIVES
    ),
)

COPY_SITES: tuple[Site, ...] = tuple(
    Site(id=f"copy-{name}", module="torch", path=f"Tensor.{name}") for name in ("to", "cuda", "copy_")
)
"""Patched only where an accelerator exists."""


def install(site: Site, subscribers: Sequence[Wrap]) -> str | None:
    """Replace the site's attribute by the composed wrappers; returns why that was not possible, or None."""
    module = sys.modules.get(site.module)
    if module is None:
        return f"module {site.module} is not loaded"
    owner, name = _owner(module, site.path)
    original = None if owner is None else _raw(owner, name)
    if owner is None or original is None:
        return f"this torch has no {site.module}.{site.path}"
    function = original.__func__ if isinstance(original, staticmethod) else original
    replacement = functools.reduce(lambda inner, wrap: wrap(inner), subscribers, function)
    if isinstance(original, staticmethod):
        replacement = staticmethod(replacement)
    setattr(owner, name, replacement)
    aliases = _find_aliases(original) if site.aliases == ALIASES else site.aliases
    for alias_module, alias_name in aliases:
        alias_owner = sys.modules.get(alias_module)
        if alias_owner is not None and getattr(alias_owner, alias_name, None) is original:
            setattr(alias_owner, alias_name, replacement)
    return None


def _find_aliases(original: Any) -> list[tuple[str, str]]:
    found = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and (name == "torch" or name.startswith("torch.")):
            found += [(name, key) for key, value in list(vars(module).items()) if value is original]
    return found


def _owner(module: ModuleType, path: str) -> tuple[Any, str]:
    owner: Any = module
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent, None)
    return owner, name


def _raw(owner: Any, name: str) -> Any:
    """The attribute as it is stored (a staticmethod stays one)."""
    return vars(owner).get(name) if name in vars(owner) else getattr(owner, name, None)
