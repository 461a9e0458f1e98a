"""Acts: what each technique id of a finding stands for, in one line (docs/vocabulary.md has the same table)."""

from __future__ import annotations

from collections.abc import Mapping

ACTS: Mapping[str, str] = {
    "activation-checkpointing": "keep fewer activations and compute them again in backward",
    "async-checkpoint": "copy the state inside the step and write it from a thread or process",
    "balance-ranks": "give every rank the same work, or move work off the slow one",
    "batch-size": "use memory that lies idle for a larger batch",
    "bf16-autocast": "run forward and loss under `torch.autocast(dtype=torch.bfloat16)`",
    "calmer-scaler": "set the GradScaler so that it skips fewer steps",
    "compile-model": "`torch.compile`",
    "compress-gradients": "send gradients with fewer bits",
    "ddp-buckets": "send gradients in buckets of another size",
    "ddp-settings": "other options of DistributedDataParallel",
    "detach-kept-tensors": "keep numbers or detached tensors, not tensors with their graph",
    "device-prefetch": "copy the next batch to the device while the current one is computed on",
    "drop-scaler": "train without the GradScaler",
    "cuda-graphs": 'record the launches of a step once and replay them (`torch.compile(mode="reduce-overhead")`)',
    "dynamic-shapes": "compile once for all shapes",
    "expandable-segments": "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, so that blocks of other sizes need no "
    "new segments",
    "fewer-host-syncs": "keep values on the device and read them back every N steps",
    "fewer-synchronisations": "exchange gradients less often, or larger batches",
    "foreach-clipping": "handle all gradients in one call, not one by one",
    "foreach-optimizer": "one update for all tensors (`foreach=True`)",
    "fused-optimizer": "one kernel for all tensors (`fused=True`)",
    "gc-freeze": "keep Python's garbage collector from visiting what lives on",
    "keep-activations": "do not recompute what there is memory for",
    "larger-batch": "more samples a step",
    "larger-micro-batch": "more samples a micro-batch, and fewer of them",
    "length-bucketing": "put samples of like length into a batch",
    "loader-workers": "load in other processes: `num_workers`, `persistent_workers`, `prefetch_factor`",
    "log-less-often": "write logs and metrics every N steps",
    "no-sync-accumulation": "average gradients once a step, not after every micro-batch",
    "overlap-own-collectives": "let own collectives run beside computation, or send fewer of them",
    "pad-to-longest": "pad to the longest sample of the batch",
    "pinned-memory": "copy batches to the device from pinned memory, without waiting for the copy",
    "precompute-samples": "decode and tokenise once, ahead of the training",
    "preprocess-in-workers": "move work from the loop body into the data set or `collate_fn`",
    "repair-link": "find out why the network is slower than it should be",
    "reuse-outputs": "use the outputs of the forward that was made anyway",
    "stable-guards": "keep Python values that change out of compiled code",
    "sum-losses": "one backward for the sum of the losses",
    "thread-count": "as many compute threads as there are cores for this process",
    "validate-less-often": "validate every N times only",
    "whole-graph": "remove what makes `torch.compile` leave the graph",
}
"""By technique id, in Markdown without links; what a report says beside a fix."""
