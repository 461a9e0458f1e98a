"""pinned-memory: batches wait in page-locked memory, from which they are copied without the host's waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Applied, Context, CopyChange, Effect, NotApplicable, Setting, Stage, Technique


class PinnedMemory(Technique):
    """
    ## What it does
    Sets `pin_memory=True` on the DataLoader: a batch is put into page-locked memory before the loop gets it. The
    script's `.to(device)` and `.cuda()` of such a batch then copies at full speed, and with `non_blocking` the host
    goes on at once: the device does the copy before the work that needs it.

    ## When it helps
    When the device's timeline shows copies from pageable memory that no kernel hides. No gain has been measured by this
    project yet: it needs an accelerator.

    ## When it does not
    Without an accelerator there is nothing to copy to: not applicable. Batches of a few kilobytes copy in microseconds
    either way. Without workers the pinning itself happens in the main process and costs a copy there. Pinned memory is
    taken from the host for good.

    `non_blocking` acts on the script's own copies from pinned batches and needs hotloop around the script; it is left
    out by API, where the loop may say it itself. A script that overwrites a batch on the host right after copying it
    must not use it.

    ## Numerics
    Exact: the same bytes.
    """

    id = "pinned-memory"
    title = "batches in pinned memory, copied without waiting"
    numerics = Numerics.EXACT
    safety = Safety.ASK
    stage = Stage.LOADER
    treats = ("pageable-transfer",)
    settings = (
        Setting(name="pin_memory", kind=bool, default=True, help="put batches into page-locked memory"),
        Setting(
            name="non_blocking",
            kind=bool,
            default=True,
            help="copy the script's pinned batches to the device without the host's waiting (with `hotloop run`)",
        ),
    )

    def check(self, settings: Mapping[str, Value], strategy: Strategy) -> str | None:
        if not settings["pin_memory"]:
            return "pin_memory is False: then there is nothing to do; leave the technique out"
        return None

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        if not torch.accelerator.is_available():
            return NotApplicable(why="no accelerator: there is no device to copy to")
        kind = torch.accelerator.current_accelerator()
        if kind is None or kind.type == "mps":
            return NotApplicable(why="torch pins no memory for this accelerator")
        if loader.pin_memory:
            return NotApplicable(why="pin_memory=True was chosen in the script")
        if loader._iterator is not None:
            return NotApplicable(why="the loader's iterator exists already")
        loader.pin_memory = True

        def undo() -> None:
            loader.pin_memory = False

        return Applied(detail="pin_memory=True", undo=undo)

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


TECHNIQUE = PinnedMemory()
