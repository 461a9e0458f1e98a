"""Acts: what each technique id of a finding stands for, in one line (docs/vocabulary.md has the same table), the
effort that it takes in the reader's own program, and how to do by hand what no strategy can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

ACTS: Mapping[str, str] = {
    "accumulation": "smaller micro-batches, of which the gradients add up to one step",
    "activation-checkpointing": "keep fewer activations and compute them again in backward",
    "activation-offload": "keep activations in the host's memory until backward needs them",
    "async-checkpoint": "copy the state inside the step and write it from a thread or process",
    "balance-ranks": "give every rank the same work, or move work off the slow one",
    "batch-size": "use memory that lies idle for a larger batch",
    "bf16-autocast": "run forward and loss under `torch.autocast(dtype=torch.bfloat16)`",
    "calmer-scaler": "set the GradScaler so that it skips fewer steps",
    "compile-model": "`torch.compile`",
    "compile-optimizer": "compile the optimizer's step",
    "compress-gradients": "send gradients with fewer bits",
    "ddp-buckets": "send gradients in buckets of another size",
    "ddp-settings": "other options of DistributedDataParallel",
    "decay-in-optimizer": "weight decay by the optimizer, not by a loop over the weights",
    "detach-kept-tensors": "keep numbers or detached tensors, not tensors with their graph",
    "device-prefetch": "copy the next batch to the device while the current one is computed on",
    "drop-scaler": "train without the GradScaler",
    "cuda-graphs": 'record the launches of a step once and replay them (`torch.compile(mode="reduce-overhead")`)',
    "dynamic-shapes": "compile once for all shapes",
    "expandable-segments": "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, so that blocks of other sizes need no "
    "new segments",
    "fewer-host-syncs": "keep values on the device and read them back every N steps",
    "fewer-synchronisations": "exchange gradients less often, or larger batches",
    "foreach-clipping": "handle all tensors in one call (`torch._foreach_*`), not one by one",
    "foreach-optimizer": "one update for all tensors (`foreach=True`)",
    "fused-optimizer": "one kernel for all tensors (`fused=True`)",
    "fsdp2": "every rank keeps a part of the parameters, gradients and optimizer state (`fully_shard`)",
    "gc-freeze": "keep Python's garbage collector from visiting long-lived objects",
    "keep-activations": "do not recompute activations that fit in memory",
    "larger-batch": "train on more samples per step",
    "larger-micro-batch": "use fewer and larger micro-batches",
    "length-bucketing": "put samples of similar length into a batch",
    "loader-workers": "load in other processes, or in more: `num_workers`, `persistent_workers`, `prefetch_factor`",
    "log-less-often": "write logs and metrics every N steps",
    "no-sync-accumulation": "average gradients once a step, not after every micro-batch",
    "optimizer-in-backward": "update each parameter inside backward, then free its gradient",
    "optimizer-state-offload": "keep the optimizer's state in the host's memory",
    "overlap-own-collectives": "overlap your own collectives with computation, or send fewer of them",
    "pad-to-longest": "pad to the longest sample of the batch",
    "pinned-memory": "copy batches to the device from pinned memory, without waiting for the copy",
    "precompute-samples": "do the work that is the same in every epoch once, before the training",
    "preprocess-in-workers": "move work from the loop body into a data set or `collate_fn`, which workers run",
    "repair-link": "find out why the network is slower than it should be",
    "reuse-outputs": "reuse the outputs of the forward pass instead of running it again",
    "stable-guards": "keep Python values that change out of compiled code",
    "sum-losses": "one backward for the sum of the losses",
    "thread-count": "use as many compute threads as this process has cores",
    "validate-less-often": "run one validation in N",
    "whole-graph": "remove what makes `torch.compile` leave the graph",
    "zero-optimizer": "every rank keeps a part of the optimizer's state (`ZeroRedundancyOptimizer`)",
    "zero-grad-to-none": "free gradients between steps (`set_to_none=True`)",
}
"""By technique id, in Markdown without links; what a report says beside a fix."""

Effort = Literal["easy", "medium", "hard"]
"""Of editing the program, not of tuning it afterwards. easy: an option, a variable or a line; medium: lines in several
places, or a new function or class; hard: another structure of the program, its data or its machines."""

EFFORTS: Mapping[str, Effort] = {
    "accumulation": "medium",
    "activation-checkpointing": "medium",
    "activation-offload": "easy",
    "async-checkpoint": "medium",
    "balance-ranks": "hard",
    "batch-size": "easy",
    "bf16-autocast": "easy",
    "bf16-parameters": "easy",
    "calmer-scaler": "easy",
    "channels-last": "easy",
    "comm-variables": "easy",
    "compile-model": "easy",
    "compile-optimizer": "easy",
    "compress-gradients": "easy",
    "cuda-graphs": "medium",
    "cudnn-benchmark": "easy",
    "ddp-buckets": "easy",
    "ddp-settings": "easy",
    "decay-in-optimizer": "medium",
    "detach-kept-tensors": "easy",
    "device-prefetch": "medium",
    "drop-scaler": "medium",
    "dynamic-shapes": "easy",
    "expandable-segments": "easy",
    "fewer-host-syncs": "medium",
    "fewer-synchronisations": "medium",
    "foreach-clipping": "easy",
    "foreach-optimizer": "easy",
    "fp16-autocast": "medium",
    "fsdp2": "hard",
    "fused-optimizer": "easy",
    "gc-freeze": "easy",
    "hf-attention": "easy",
    "keep-activations": "easy",
    "keep-heap": "easy",
    "larger-batch": "easy",
    "larger-micro-batch": "easy",
    "length-bucketing": "medium",
    "loader-workers": "easy",
    "log-less-often": "easy",
    "matmul-precision": "easy",
    "no-sync-accumulation": "medium",
    "optimizer-in-backward": "hard",
    "optimizer-state-offload": "hard",
    "overlap-own-collectives": "medium",
    "pad-to-longest": "medium",
    "pinned-memory": "medium",
    "precompute-samples": "hard",
    "preprocess-in-workers": "medium",
    "repair-link": "hard",
    "reuse-outputs": "medium",
    "sdpa-backend": "easy",
    "stable-guards": "medium",
    "sum-losses": "easy",
    "thread-count": "easy",
    "validate-less-often": "easy",
    "whole-graph": "hard",
    "zero-grad-to-none": "easy",
    "zero-optimizer": "medium",
}
"""By technique id."""

BY_HAND: Mapping[str, str] = {
    "async-checkpoint": """Save with `torch.distributed.checkpoint.async_save`, or copy the state to host memory inside
the step and let a thread write it. It needs memory for one more copy of the state. Where that is too much, save less
often. Advised by `blocking-checkpoint`. The numbers of the training stay the same.""",
    "balance-ranks": """Find out what the slow rank does more of, or on what slower core or device it runs: uneven
shards, longer samples, another program beside it. Deal the samples out by their cost, not by their count. Which samples
meet in a batch may change. Advised by `straggler`.""",
    "batch-size": """Raise the batch size towards the memory that lies idle, and tune the learning rate again: fewer and
larger updates are another training. Advised by `memory-headroom`.""",
    "compress-gradients": """Register a communication hook, such as
`model.register_comm_hook(None, torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)`. It
rounds the gradients: compare the loss. Advised by `slow-link`.""",
    "cuda-graphs": """Compile with `torch.compile(model, mode="reduce-overhead")`, or capture the step with
`torch.cuda.graphs.make_graphed_callables`. Shapes and addresses must stay the same from step to step, and no step may
wait for the device. Advised by `launch-bound`. Rounding may differ under `torch.compile`.""",
    "detach-kept-tensors": """Keep `loss.item()` or `loss.detach()`, not `loss`: a kept loss holds the whole graph of
its step. The same holds for outputs in lists and attributes. Advised by `memory-growth`. The numbers stay the same.""",
    "fewer-host-syncs": """Add up `loss.detach()` on the device and call `.item()` every N steps. Replace boolean masks
by `torch.where`, and copies by `non_blocking=True` from pinned memory. Advised by `host-sync`. The numbers stay the
same.""",
    "fewer-synchronisations": """Accumulate gradients over several micro-batches under `model.no_sync()`, or take larger
batches. With more samples an update it is another training: tune the learning rate again. Advised by
`exposed-communication`.""",
    "larger-batch": """Raise the batch size while memory allows it, and tune the learning rate again: fewer and larger
updates are another training. If the steps wait for input, mend that first. Advised by `small-batch`.""",
    "larger-micro-batch": """With gradient accumulation, double the micro-batch and halve their number: the batch of an
update stays the same, and so does the gradient up to rounding. Advised by `small-batch`.""",
    "length-bucketing": """Let a batch sampler put samples of like length together: sort windows of, say, 50 batches by
length, cut them into batches, and shuffle the batches. With the Transformers Trainer it is an option of
`TrainingArguments` (`group_by_length=True`, in newer versions `train_sampling_strategy="group_by_length"`). Which
samples meet in a batch changes. Advised by `padding-waste`.""",
    "log-less-often": """Write logs every N steps, keep the values as detached tensors until then, and let files be
flushed by their buffer. Advised by `logging-overhead`. The numbers stay the same.""",
    "overlap-own-collectives": """Start a collective with `async_op=True` and call `wait()` on its handle where the
result is used; join many small tensors into one. Advised by `exposed-communication`. The numbers stay the same.""",
    "pad-to-longest": """Pad in `collate_fn` to the longest sample of the batch, not to the model's maximum:
`torch.nn.utils.rnn.pad_sequence`, or `DataCollatorWithPadding(tokenizer)` of Transformers, with no padding in
`__getitem__`. Sums over other lengths may round differently. Advised by `padding-waste`.""",
    "precompute-samples": """Do the fixed part of each sample's work once, ahead of the training: decode, resize or
tokenise, store the result (`torch.save`, `numpy.memmap`, `datasets.Dataset.map`), and let `__getitem__` only read it.
Leave out whatever draws random numbers: stored augmentation is frozen, and every epoch sees the same samples. Advised
by `input-bound`.""",
    "preprocess-in-workers": """Move the work from the loop body into `__getitem__` or `collate_fn`, and give the
DataLoader `num_workers`. Random draws then come from the workers' generators. Advised by `preprocessing-in-loop`.""",
    "repair-link": """Compare the measured rate with what the network should reach (`hotloop bench scaling`;
`nccl-tests` on GPUs). Then look at the interface in use (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`), the duplex and
speed of the port, and other traffic. Advised by `slow-link`. The numbers stay the same.""",
    "reuse-outputs": """Keep the outputs of the training forward, detached, and compute the metrics from them; a second
forward on the same batch is not needed. Dropout and batch statistics of a pass in evaluation mode differ. Advised by
`redundant-compute`.""",
    "stable-guards": """Pass Python numbers that change (a step count, a learning rate) as tensors, or keep them out of
the compiled function. `TORCH_LOGS=recompiles` names the guard that failed. Rounding may differ. Advised by
`recompilation`.""",
    "sum-losses": """Call `(loss_a + loss_b).backward()` once, in place of a backward for each loss. Gradients agree up
to rounding. Not where each loss's own gradient is needed. Advised by `redundant-compute`.""",
    "validate-less-often": """Validate every N steps or epochs (`eval_steps` of the Transformers Trainer,
`val_check_interval` or `check_val_every_n_epoch` of Lightning), or on a fixed part of the set in between. Early
stopping reacts later. Advised by `frequent-validation`. The weights stay the same.""",
    "whole-graph": """Compile with `torch.compile(model, fullgraph=True)`, which names the next break. Move prints and
`.item()` out of the model, write branches on values as `torch.where`, and register foreign functions as custom
operators. Rounding may differ. Advised by `graph-break`.""",
}
"""How to do what no strategy can, by technique id, in Markdown."""
