"""device-prefetch: the next batch is copied to the device while the current one is computed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety, Value
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class DevicePrefetch(Technique):
    """
    ## What it does
    By API, gives back the loader inside a `hotloop.DevicePrefetcher`: batches arrive on the device, the next one copied
    on a stream of its own. Works with any nesting of tuples, lists, mappings and dataclasses.

    ## When it helps
    When copies to the device are long and stand between the steps. No gain has been measured by this project yet: it
    needs an accelerator.

    ## When it does not
    Around an unmodified script: what the script does with a batch before it copies it cannot be known, so the loader
    is left alone there (`pinned-memory` makes its copies wait for nothing). Without an accelerator. With batches of a
    few kilobytes. It takes the memory of one more batch on the device.

    ## Numerics
    Exact: the same bytes.
    """

    id = "device-prefetch"
    title = "next batch copied beside the computation"
    numerics = Numerics.EXACT
    safety = Safety.ASK
    stage = Stage.LOADER
    treats = ("pageable-transfer",)

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        import torch

        if context.from_outside:
            return NotApplicable(
                why="what the script does with a batch before it copies it cannot be known; "
                "wrap the loader in hotloop.DevicePrefetcher, or choose pinned-memory"
            )
        if not torch.accelerator.is_available():
            return NotApplicable(why="no accelerator: there is no device to copy to")
        from hotloop.apply.device_batches import DevicePrefetcher

        prefetcher = DevicePrefetcher(loader)
        return Applied(detail=f"batches arrive on {prefetcher.device}, one ahead", replacement=prefetcher)


TECHNIQUE = DevicePrefetch()
