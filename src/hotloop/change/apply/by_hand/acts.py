"""Fixes that no strategy can apply: how the reader does it, one act each; the catalogue finds every one."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ASYNC_CHECKPOINT = act_by_hand(
    """Save with `torch.distributed.checkpoint.async_save`, or copy the state to host memory inside the step and let a
    thread write it. This needs memory for one more copy of the state. If that is too much, save less often. Advised by
    `blocking-checkpoint`. The results of training stay the same.""",
    id="async-checkpoint",
    summary="copy the state inside the step and write it from a thread or process",
    effort="medium",
    numerics=Numerics.EXACT,
)

BALANCE_RANKS = act_by_hand(
    """Find out why the slow rank is slow. It may do more work (uneven shards, longer samples), run on a slower device,
    or share its cores with another program. Distribute samples by cost, not by count. The composition of the batches
    may change. Advised by `straggler`.""",
    id="balance-ranks",
    summary="give every rank the same work, or move work away from the slow rank",
    effort="hard",
    numerics=Numerics.RESAMPLED,
    numerics_note=", or exact if no data moves",
)

BATCH_SIZE = act_by_hand(
    """Raise the batch size until the free memory is used, and tune the learning rate again: fewer and larger updates
    change the training results. Advised by `memory-headroom`.""",
    id="batch-size",
    summary="use free memory for a larger batch",
    effort="easy",
    numerics=Numerics.LOSSY,
)

CALMER_SCALER = act_by_hand(
    """Raise `growth_interval` of the GradScaler (torch's default is 2000), or lower `growth_factor`: each time the
    scaler doubles its factor beyond the range that the gradients allow, a full step is computed and thrown away. With
    an interval of 2, up to every third step is lost; with 2000, one in 2001. Or clip the gradients after `unscale_`.
    The optimizer then takes steps that it skipped before. Advised by `loss-scaler-overhead`.""",
    id="calmer-scaler",
    summary="set the GradScaler so that it skips fewer steps",
    effort="easy",
    numerics=Numerics.LOSSY,
)

CUDA_GRAPHS = act_by_hand(
    """Compile with `torch.compile(model, mode="reduce-overhead")`, or capture the step with
    `torch.cuda.graphs.make_graphed_callables`. Shapes and addresses must stay the same from step to step, and no step
    may wait for the device. Advised by `launch-bound`. Rounding may differ under `torch.compile`.""",
    id="cuda-graphs",
    summary='record the launches of a step once and replay them (`torch.compile(mode="reduce-overhead")`)',
    effort="medium",
    numerics=Numerics.EXACT,
)

DETACH_KEPT_TENSORS = act_by_hand(
    """Keep `loss.item()` or `loss.detach()`, not `loss`: a kept loss holds the entire graph of its step. The same is
    true for outputs in lists and attributes. Advised by `memory-growth`. The results stay the same.""",
    id="detach-kept-tensors",
    summary="keep numbers or detached tensors, not tensors with their graph",
    effort="easy",
    numerics=Numerics.EXACT,
)

FEWER_HOST_SYNCS = act_by_hand(
    """Add up `loss.detach()` on the device and call `.item()` every N steps. Replace boolean masks with `torch.where`,
    and make copies from pinned memory with `non_blocking=True`. Advised by `host-sync`. The results stay the same.""",
    id="fewer-host-syncs",
    summary="keep values on the device and read them back every N steps",
    effort="medium",
    numerics=Numerics.EXACT,
)

FEWER_SYNCHRONISATIONS = act_by_hand(
    """Accumulate gradients over several micro-batches under `model.no_sync()`, or use larger batches. With more samples
    per update, tune the learning rate again. Advised by `exposed-communication`.""",
    id="fewer-synchronisations",
    summary="synchronize gradients less often, or use larger batches",
    effort="medium",
    numerics=Numerics.REORDERED,
)

LARGER_BATCH = act_by_hand(
    """Raise the batch size while memory allows it, and tune the learning rate again: fewer and larger updates change
    the training results. If the steps wait for input, fix that first. Advised by `small-batch`.""",
    id="larger-batch",
    summary="train on more samples per step",
    effort="easy",
    numerics=Numerics.LOSSY,
)

LARGER_MICRO_BATCH = act_by_hand(
    """With gradient accumulation, double the size of the micro-batches and halve their number: the total batch of an
    update stays the same, and so does the gradient up to rounding. Advised by `small-batch`.""",
    id="larger-micro-batch",
    summary="use fewer and larger micro-batches",
    effort="easy",
    numerics=Numerics.REORDERED,
)

LOG_LESS_OFTEN = act_by_hand(
    """Write logs every N steps, keep the values as detached tensors until then, and let the buffer decide when to flush
    the file. Advised by `logging-overhead`. The results stay the same.""",
    id="log-less-often",
    summary="write logs and metrics every N steps",
    effort="easy",
    numerics=Numerics.EXACT,
)

OVERLAP_OWN_COLLECTIVES = act_by_hand(
    """Start a collective with `async_op=True` and call `wait()` on its handle where the result is used. Join many small
    tensors into one. Advised by `exposed-communication`. Joined tensors may be summed in another order.""",
    id="overlap-own-collectives",
    summary="overlap your own collectives with computation, or send fewer of them",
    effort="medium",
    numerics=Numerics.REORDERED,
)

PACK_SEQUENCES = act_by_hand(
    """Put several short samples into one row, each with its own positions and masked from the others:
    `hotloop.pack_sequences(sequences, length)` in `collate_fn`, and `model(**packed.inputs_for(model))` in the loop.
    Each token's loss is the same as without packing. hotloop refuses a model whose `forward` takes no `position_ids` or
    `attention_mask`, because its samples would see each other. Packing works only for causal language models. A batch
    then has fewer rows, so add as many samples as fit into the former padding. Advised by `padding-waste`.""",
    id="pack-sequences",
    summary="pack several samples into one row, separated by positions and mask",
    effort="medium",
    numerics=Numerics.REORDERED,
)

PAD_TO_LONGEST = act_by_hand(
    """Pad in `collate_fn` to the longest sample of the batch, not to the model's maximum:
    `torch.nn.utils.rnn.pad_sequence`, or `DataCollatorWithPadding(tokenizer)` of Transformers, with no padding in
    `__getitem__`. Sums over different lengths may round differently. Advised by `padding-waste`.""",
    id="pad-to-longest",
    summary="pad to the longest sample of the batch",
    effort="medium",
    numerics=Numerics.REORDERED,
)

PRECOMPUTE_SAMPLES = act_by_hand(
    """Do the fixed part of each sample's work once, before training: decode, resize or tokenize, store the result
    (`torch.save`, `numpy.memmap`, `datasets.Dataset.map`), and let `__getitem__` only read it. Leave out everything
    that draws random numbers: stored augmentation is frozen, and every epoch gets the same samples. If samples draw no
    random numbers at all, `cache-samples` does this work during training. Advised by `input-bound`.""",
    id="precompute-samples",
    summary="do the work that is the same in every epoch only once, before training",
    effort="hard",
    numerics=Numerics.RESAMPLED,
    numerics_note=", or exact if samples draw no random numbers",
)

PREPROCESS_IN_WORKERS = act_by_hand(
    """Move the work from the loop body into `__getitem__` or `collate_fn`, and give the DataLoader `num_workers`.
    Random draws then come from the workers' generators. Advised by `preprocessing-in-loop`.""",
    id="preprocess-in-workers",
    summary="move work from the loop body into the dataset or `collate_fn`, which workers run",
    effort="medium",
    numerics=Numerics.RESAMPLED,
)

REMOVE_HOOKS = act_by_hand(
    """Remove the hook (`handle.remove()`), register it only while you debug, or let it return early except in every
    N-th step. Advised by `module-hooks`. The results stay the same unless the hook changes its inputs or outputs.""",
    id="remove-hooks",
    summary="remove module hooks, or run them rarely",
    effort="easy",
    numerics=Numerics.EXACT,
)

REPAIR_LINK = act_by_hand(
    """Compare the measured rate with the network's nominal rate (`hotloop bench scaling`; `nccl-tests` on GPUs). Then
    check the interface in use (`NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME`), the duplex and speed of the port, and other
    traffic. Advised by `slow-link`. The results stay the same.""",
    id="repair-link",
    summary="find out why the network is slower than it should be",
    effort="hard",
    numerics=Numerics.EXACT,
)

REUSE_OUTPUTS = act_by_hand(
    """Keep the detached outputs of the training forward and compute the metrics from them; a second forward on the same
    batch is not needed. A second pass in evaluation mode would use different dropout and batch statistics, so metrics
    may differ. Advised by `redundant-compute`.""",
    id="reuse-outputs",
    summary="reuse the outputs of the forward pass instead of running it again",
    effort="medium",
    numerics=Numerics.REORDERED,
    numerics_note=", or exact if only forwards repeat",
)

SMALLER_BATCH = act_by_hand(
    """Lower the batch size until the step fits, and tune the learning rate again: more and noisier updates change the
    training results. `accumulation` saves the same memory and keeps the batch. Advised by `out-of-memory`.""",
    id="smaller-batch",
    summary="train on fewer samples per step",
    effort="easy",
    numerics=Numerics.LOSSY,
)

SPARSE_GRADIENTS = act_by_hand(
    """Give the table `nn.Embedding(..., sparse=True)` and an optimizer that supports sparse gradients (`SparseAdam`,
    `SGD`, `Adagrad`), and the other parameters their own optimizer. Advised by `dense-embedding-gradient`. Rows that
    are not used keep their averages, so the results change.""",
    id="sparse-gradients",
    summary="compute and apply the gradient only for used rows",
    effort="medium",
    numerics=Numerics.LOSSY,
)

STABLE_GUARDS = act_by_hand(
    """Pass Python numbers that change (a step count, a learning rate) as tensors, or keep them out of the compiled
    function. `TORCH_LOGS=recompiles` names the guard that failed. Rounding may differ. Advised by `recompilation`.""",
    id="stable-guards",
    summary="keep Python values that change out of compiled code",
    effort="medium",
    numerics=Numerics.REORDERED,
)

STOP_DRIFT = act_by_hand(
    """Find what accumulates in the phase that grows: hooks that are registered again, a list that the code walks, a
    graph that is kept. For an optimizer on the CPU whose gradients have become zero, call
    `torch.set_flush_denormal(True)` before training. Advised by `phase-drift`. Flushing denormals changes only numbers
    below 1e-38.""",
    id="stop-drift",
    summary="remove the cause that makes a phase slower during the run",
    effort="medium",
    numerics=Numerics.REORDERED,
)

SUM_LOSSES = act_by_hand(
    """Call `(loss_a + loss_b).backward()` once instead of a backward per loss. Gradients agree up to rounding. Do not
    do this if training needs each loss's own gradient. Advised by `redundant-compute`.""",
    id="sum-losses",
    summary="run one backward for the sum of the losses",
    effort="easy",
    numerics=Numerics.REORDERED,
)

TURN_OFF_DEBUGGING = act_by_hand(
    """Turn off the setting once you have found the bug: call `torch.autograd.set_detect_anomaly(False)`, and use an
    environment without `CUDA_LAUNCH_BLOCKING`, `TORCH_DISTRIBUTED_DEBUG`, `TORCH_LOGS` and `NCCL_DEBUG`. Advised by
    `debug-settings`. The results stay the same, except for `use_deterministic_algorithms`.""",
    id="turn-off-debugging",
    summary="turn off debugging settings",
    effort="easy",
    numerics=Numerics.EXACT,
)

VALIDATE_LESS_OFTEN = act_by_hand(
    """Validate every N steps or epochs (`eval_steps` of the Transformers Trainer, `val_check_interval` or
    `check_val_every_n_epoch` of Lightning), or on a fixed part of the set in between. Early stopping and schedules
    that read the validation loss react later. Each pass over a loader draws a seed from torch's generator, so the
    random numbers that follow change. Advised by `frequent-validation`.""",
    id="validate-less-often",
    summary="validate only every N-th time",
    effort="easy",
    numerics=Numerics.RESAMPLED,
)

WHOLE_GRAPH = act_by_hand(
    """Compile with `torch.compile(model, fullgraph=True)`, which names the next break. Move prints and `.item()` out of
    the model, replace branches on values with `torch.where`, and register foreign functions as custom operators.
    Rounding may differ. Advised by `graph-break`.""",
    id="whole-graph",
    summary="remove the graph breaks of `torch.compile`",
    effort="hard",
    numerics=Numerics.REORDERED,
)
