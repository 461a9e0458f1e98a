"""device-prefetch: the next batch is copied to the device while the current one is computed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class DevicePrefetch(Technique):
    """
    ## What it does
    By API, wraps the loader in a `hotloop.DevicePrefetcher`: batches arrive on the device, and the next one is copied
    on its own stream. Works with any nesting of tuples, lists, mappings and dataclasses.

    ## When it helps
    Copies to the device are long and the steps wait for them. Not measured by this project yet: it needs an
    accelerator.

    ## When it does not
    An unmodified script: hotloop cannot know what it does with a batch before copying it, so the loader is left alone
    (`pinned-memory` makes such copies asynchronous). No accelerator. Batches of a few kilobytes. It takes the memory of
    one more batch on the device.

    ## Numerics
    Exact: the same bytes.
    """

    id = "device-prefetch"
    summary = "copy the next batch to the device while the current one is processed"
    effort = "medium"
    numerics = Numerics.EXACT
    stage = Stage.LOADER
    treats = ("pageable-transfer",)

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        if context.from_outside:
            return NotApplicable(
                why="hotloop cannot know what the script does with a batch before it copies it; wrap the loader in "
                "hotloop.DevicePrefetcher, or use pinned-memory"
            )
        if not torch.accelerator.is_available():
            return NotApplicable(why="there is no accelerator to copy to")
        from hotloop.apply.device_batches import DevicePrefetcher

        prefetcher = DevicePrefetcher(loader)
        return Applied(
            text="batches are copied to {device} one ahead",
            values={"device": str(prefetcher.device)},
            replacement=prefetcher,
        )
