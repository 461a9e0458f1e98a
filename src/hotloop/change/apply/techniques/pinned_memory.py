"""pinned-memory: batches wait in page-locked memory, from which they are copied without the host's waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.sources import Arguments
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, CopyChange, Effect, NotApplicable, Setting, Stage, Technique


class PinnedMemory(Technique):
    """
    ## What it does
    Sets `pin_memory=True` on the DataLoader: batches reach the loop in page-locked memory. The script's `.to(device)`
    and `.cuda()` of such a batch then copy at full speed, and with `non_blocking`, the host continues immediately: the
    device makes the copy before the work that needs it.

    ## When it helps
    It helps if the device timeline shows copies from pageable memory that do not overlap with kernels. The technique
    has not been measured on an accelerator yet.

    ## When it does not
    Without an accelerator, the technique does not apply, because there is no device to copy to. Batches that are
    already on the accelerator cannot be pinned, and workers that are not forked may send such batches. Batches of a few
    kilobytes copy in microseconds either way. Without workers, pinning runs in the main process and costs a copy there,
    so hotloop leaves such a loader alone. The host cannot page out pinned memory.

    `non_blocking` changes the script's own copies from pinned batches and needs `hotloop run`; if you use the API, set
    it in your own loop. Do not use it with a script that overwrites a batch on the host right after copying it.

    ## Numerics
    Exact: the bytes stay the same.
    """

    id = "pinned-memory"
    summary = "copy batches to the device from pinned memory without waiting for the copy"
    effort = "medium"
    numerics = Numerics.EXACT
    stage = Stage.LOADER
    source = Arguments(names=("pin_memory",))
    treats = ("pageable-transfer",)
    settings = (
        Setting(name="pin_memory", kind=bool, default=True, help="put batches into page-locked memory"),
        Setting(
            name="non_blocking",
            kind=bool,
            default=True,
            help="copy the script's pinned batches to the device without making the host wait (with `hotloop run`)",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if not settings["pin_memory"]:
            return "pin_memory is False, so there is nothing to do; remove the technique"
        return None

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        from hotloop.change.apply.worker_passes import start_method

        if not torch.accelerator.is_available():
            return NotApplicable(why="there is no accelerator to copy to")
        kind = torch.accelerator.current_accelerator()
        if kind is None or kind.type == "mps":
            return NotApplicable(why="torch cannot pin memory for this accelerator")
        if loader.pin_memory:
            return NotApplicable(why="the script sets pin_memory=True")
        if loader._iterator is not None:
            return NotApplicable(why="the loader's iterator already exists")
        if not loader.num_workers:
            return NotApplicable(
                why="without workers, the main process pins batches, which costs the copy that pinning saves"
            )
        if start_method(loader) != "fork":  # a forked worker cannot use the accelerator of its parent
            return NotApplicable(why="workers that are not forked may send batches that are on the accelerator")
        loader.pin_memory = True
        return Applied(
            text="pin_memory={pin_memory}",
            values={"pin_memory": True},
            undo=lambda: setattr(loader, "pin_memory", False),
        )

    def change_copies(self, settings: Mapping[str, Value], context: Context) -> CopyChange | None:
        return wait_for_no_copy if settings["non_blocking"] and context.from_outside else None


def wait_for_no_copy(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add non_blocking=True where a pinned tensor goes to a device and the script did not say how."""
    if "non_blocking" in kwargs or any(isinstance(one, bool) for one in args):
        return
    target = kwargs.get("device", args[0] if args else None)
    if _is_device(target) and tensor.is_pinned():
        kwargs["non_blocking"] = True


def _is_device(target: Any) -> bool:
    """Whether a copy's first argument (nothing for ``cuda()``) names an accelerator."""
    import torch

    if isinstance(target, torch.dtype):
        return False
    if isinstance(target, torch.Tensor):
        target = target.device
    if isinstance(target, torch.device):
        target = target.type
    return not (isinstance(target, str) and target.partition(":")[0] in ("cpu", "meta"))
