"""Workload + Hardware -> MemoryPrediction: bytes on the device that needs the most, by purpose.

States follow Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(arXiv:1910.02054, section 5 and table 1). Activations follow Korthikanti et al., "Reducing Activation Recomputation in
Large Transformer Models" (arXiv:2205.05198): sbh (34 + 5 a s / h) bytes per layer for 16-bit GPT with dropout, split by
tensor and sequence parallelism. The rest is derived from the tensors that autograd keeps: gated feed-forward blocks,
grouped queries, flash attention, float32 residuals under autocast, the loss over a vocabulary.

Every part is affine in the micro-batch. Gradients are counted together with the activations: with accumulation, they
exist from the second micro-batch on.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.planning import ZeroStage
from hotloop.core.prediction import MemoryPrediction
from hotloop.core.workload import OPTIMIZERS, DecoderShape, PlannedRun, Workload, require_choice, require_count

ZERO_PRECISIONS = ("mixed", "fp32")
"""mixed: 16-bit parameters and gradients, float32 parameters and optimizer states. fp32: everything in float32."""

STATE_BYTES = {"adamw": 8.0, "sgd": 4.0, "adafactor": 0.0, "adamw-8bit": 2.0 * (1 + 4 / 256)}
"""Bytes of an optimizer's states, per parameter. sgd uses momentum; adafactor's rows and columns are too small to
count; 8-bit Adam keeps a float32 scale for each block of 256 (bitsandbytes)."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """The bytes of one parameter, by part, on a device that holds all of it."""

    params: float
    gradients: float
    master: float
    """A float32 copy of the parameters."""
    optimizer: float

    @property
    def total(self) -> float:
        return self.params + self.gradients + self.master + self.optimizer


def state_bytes(precision: str, optimizer: str = "adamw") -> StateBytes:
    """Per parameter: 2 + 2 + 4 + 8 for mixed precision and Adam (16 in all), 4 + 4 + 8 in float32.

    >>> state_bytes("mixed").total, state_bytes("fp32").total
    (16.0, 16.0)
    """
    require_choice("precision", precision, ZERO_PRECISIONS)
    require_choice("optimizer", optimizer, OPTIMIZERS)
    states = STATE_BYTES[optimizer]
    return StateBytes(2, 2, 4, states) if precision == "mixed" else StateBytes(4, 4, 0, states)


def zero_memory(
    params: float, ranks: int, *, optimizer: str = "adamw", precision: str = "mixed"
) -> tuple[ZeroStage, ...]:
    """The bytes on one of ``ranks`` devices in stages 0 to 3 of ZeRO.

    ``params`` counts the model's parameters; ``precision`` is mixed or fp32; ``optimizer`` is adamw, sgd (with
    momentum), adafactor or adamw-8bit. Formula of arXiv:1910.02054, table 1. Raises UsageError.

    >>> [round(row.total_bytes / 1e9, 2) for row in zero_memory(7.5e9, 64)]
    [120.0, 31.41, 16.64, 1.88]
    >>> [round(row.total_bytes / 1e9, 2) for row in zero_memory(175e9, 64, precision="fp32")]
    [2800.0, 1421.88, 732.81, 43.75]
    """
    if isinstance(params, bool) or not isinstance(params, int | float) or not 1 <= params < 1e18:
        raise UsageError(f"params = {params!r}: give the number of parameters, such as 175e9")
    require_count("ranks", ranks)
    each = state_bytes(precision, optimizer)

    found = []
    for stage in range(4):
        parts = (each.params, each.gradients, each.master + each.optimizer)
        held = [params * part / (ranks if stage >= least else 1) for part, least in zip(parts, (3, 2, 1), strict=True)]
        found.append(
            ZeroStage(
                stage=stage,
                params_bytes=held[0],
                gradients_bytes=held[1],
                optimizer_bytes=held[2],
                total_bytes=sum(held),
            )
        )
    return tuple(found)


FRAGMENTATION_RATIO = 0.05
"""Share of the allocated bytes that the allocator reserves in addition. Mean of SimuMax's ten rows with both values
(0.028 to 0.079 each)."""

COMMUNICATOR_BYTES = 268_435_456
"""Bytes of a group's communicator: 4 MiB (NCCL_BUFFSIZE) to and from each peer of a ring, in at most 32 channels."""

FLAT_GRADIENT_BYTES = 6
"""Bytes per parameter of a rank's partition: DeepSpeed's stages 1 and 2 flatten its gradients in 16 bits and cast them
to float32 (stage_1_and_2.py, step). A block this large does not fit between freed activations, so more is reserved."""

BUCKET_PARAMS = 500_000_000
"""DeepSpeed's reduce_bucket_size and allgather_bucket_size."""

ERROR_RATIO = 0.185
"""90 % of the published rows that were not used for any constant are within it: held_out_p90_ratio in
benchmarks/results/plan/memory.json."""

QUANTIZED_ERROR_RATIO = 0.326
"""The same for the published rows with 4-bit weights, whose forecasts are all too low."""

QUANTIZED_BYTES = {"nf4": 0.5 + 4 / 64, "nf4-dq": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a parameter with its scales: a float32 for each block of 64, or 8 bits and a float32 for each 256 blocks
(QLoRA, arXiv:2305.14314, section 3: 0.5 and 0.127 bits)."""

SHARDED_PARAMS = ("zero3", "fsdp", "hsdp")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The memory of one token in one layer, before tensor parallelism."""

    norms: float
    """Inputs of both norms and dropout's masks: split by sequence parallelism only."""
    inputs: float
    """Outputs of both norms, the inputs of products: Megatron gathers them again in the backward, torch keeps them."""
    attention: float
    feed_forward: float

    def on_rank(self, run: PlannedRun) -> float:
        """Bytes on one tensor-parallel rank."""
        return sum(self.parts_on_rank(run).values())

    def parts_on_rank(self, run: PlannedRun) -> dict[str, float]:
        return {
            "norms and inputs": self.norms / sequence_ranks(run) + self.inputs / input_ranks(run),
            "attention": self.attention / run.tp,
            "feed-forward": self.feed_forward / run.tp,
        }


def sequence_ranks(run: PlannedRun) -> int:
    """Ranks over which norms and layer inputs are split."""
    return run.tp if run.sequence_parallel else 1


def input_ranks(run: PlannedRun) -> int:
    """Ranks over which stored inputs of products are split."""
    return sequence_ranks(run) if run.framework == "megatron" else 1


def element_bytes(run: PlannedRun) -> int:
    """Bytes of an element in the layers' computation."""
    return 4 if run.precision == "fp32" else 2


def residual_bytes(run: PlannedRun) -> int:
    """Bytes of an element between layers: float32 under autocast with float32 weights."""
    return 4 if is_autocast(run) else element_bytes(run)


def is_autocast(run: PlannedRun) -> bool:
    """Float32 weights that each product casts. Sharded runs (FSDP's mixed precision, DeepSpeed, Megatron) cast weights
    only once."""
    return run.framework == "torch" and run.sharding == "ddp" and run.precision in ("bf16", "fp16", "fp8")


def param_bytes(run: PlannedRun) -> StateBytes:
    """States of one trained parameter without sharding."""
    states = STATE_BYTES[run.optimizer]
    if run.precision == "fp32":
        return StateBytes(4, 4, 0, states)
    if run.precision == "pure-bf16":
        return StateBytes(2, 2, 0, states / 2)
    if run.framework == "megatron":
        return StateBytes(2, 4, 4, states)
    if run.sharding.startswith("zero"):
        return StateBytes(2, 2, 4, states)
    return StateBytes(4, 4, 0, states)


def full_token_bytes(model: DecoderShape, run: PlannedRun, *, has_experts: bool) -> TokenBytes:
    """All bytes that autograd keeps for one token in one layer, before tensor parallelism."""
    e, r = element_bytes(run), residual_bytes(run)
    has_weights = run.trainable_params is None
    h, q, kv = model.hidden, model.attention_width, model.kv_width
    # Compressed queries, keys and values have their own norms, and are the inputs of products.
    norms = 2 * r * h + (2 * h if model.dropout else 0) + e * model.latent_width
    inputs = (2 if has_weights else 1) * e * h + (e * model.latent_width if has_weights else 0)
    attention = float(e * (q + kv + model.values_width + model.output_width))
    if model.kv_rank is not None:
        # In torch, values are a view of the expanded compressed part; Megatron copies them.
        attention += 0 if run.framework == "megatron" else e * (model.latent_up_width - model.values_width)
    elif run.framework == "megatron" and not model.learned_positions:
        # The values keep the fused projection alive, as they are a view of it; rotated queries and keys are copies.
        attention += e * (q + kv)
    if model.attention == "flash":
        attention += 4 * model.heads
    elif not (run.recompute == "selective" and run.framework == "megatron"):
        attention += core_bytes(model, run)
    factor = float(4 if model.is_gated else 2)
    if model.is_gated and (run.compiled or run.framework == "megatron"):
        factor = 3  # one kernel for the activation and its product
    if not has_weights:
        factor -= 1  # the last product's input is needed only for its weight's gradient
    if has_experts:
        width = model.expert_width
        routed = model.experts_per_token * (factor * e * width + 2 * e * h) + 8 * model.experts
        feed_forward = routed + model.shared_experts * factor * e * width
    else:
        feed_forward = factor * e * model.ffn_width
    return TokenBytes(norms, inputs, attention, feed_forward)


def core_bytes(model: DecoderShape, run: PlannedRun) -> float:
    """Scores of one token in attention by matrix products: softmax, dropout's mask and output (5 a s with dropout)."""
    e, r = element_bytes(run), residual_bytes(run)
    kept = r + (1 + e if model.dropout else e if r != e else 0)
    return float(kept * model.heads * model.seq)


def kept_token_bytes(model: DecoderShape, run: PlannedRun, *, has_experts: bool) -> TokenBytes:
    """The bytes kept for one token in one layer from its forward to its backward."""
    e, r = element_bytes(run), residual_bytes(run)
    if run.recompute == "full":
        return TokenBytes(r * model.hidden, 0, 0, 0)
    if run.recompute == "selective" and run.framework == "torch":
        # The layer's input, attention's output, and every second product: queries, values, the block's first.
        width = model.experts_per_token * model.expert_width if has_experts else model.ffn_width
        products = e * model.hidden if model.is_gated else 0
        attention = e * (model.output_width + model.attention_width + model.values_width)
        return TokenBytes(r * model.hidden + products, 0, attention, float(e * width))
    return full_token_bytes(model, run, has_experts=has_experts)


def logits_token_bytes(model: DecoderShape, run: PlannedRun) -> float:
    """The bytes of one token while the loss and its gradient are computed.

    Eager, 16-bit: the output, log-softmax in float32, its gradient, and the gradient before the cast: 2 + 4 + 4 + 4.
    If tensor-parallel ranks share the vocabulary, the backward of torch.distributed.tensor.parallel.loss_parallel adds
    exponentials: 4 more. Fused: the output and its gradient.
    """
    e = element_bytes(run)
    if run.fused_loss:
        return float(2 * e * model.vocab)
    eager = 10 if run.framework == "megatron" else e + (16 if run.tp > 1 else 12)
    return float(eager * model.vocab)


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One pipeline rank: its layers, and whether it embeds or computes the loss."""

    dense_layers: int
    expert_layers: int
    is_first: bool
    is_last: bool

    @property
    def layers(self) -> int:
        return self.dense_layers + self.expert_layers


def heavy_stages(workload: Workload) -> list[PipelineStage]:
    """The first and the last stage: one of them needs the most; a stage has ceil(layers / pp) layers."""
    model, pp = workload.model, workload.run.pp
    count = -(-model.layers // pp)
    dense = model.layers - model.expert_layers
    if pp == 1:
        return [PipelineStage(dense, model.expert_layers, True, True)]
    first = min(dense, count)
    last_experts = min(model.expert_layers, count)
    return [
        PipelineStage(first, count - first, True, False),
        PipelineStage(count - last_experts, last_experts, False, True),
    ]


def in_flight(run: PlannedRun, micro_batches: int, stage: PipelineStage) -> float:
    """Micro-batches whose activations a stage holds at once: min(pp, micro-batches) on the first, 1 on the last stage.

    1F1B; interleaved over v chunks, the first holds pp + (pp - 1) / v (arXiv:2205.05198, section 4.2.3).
    """
    if run.pp == 1 or not stage.is_first:
        return 1.0
    most = run.pp + ((run.pp - 1) / run.pipeline_chunks if run.pipeline_chunks > 1 else 0)
    return float(min(most, micro_batches))


@dataclass(frozen=True, slots=True)
class StageParams:
    """Parameters on one rank of a stage, before the data-parallel ranks shard them."""

    dense: float
    experts: float
    layer: float
    """Parameters of its largest layer, without experts on other ranks."""
    ends: float
    """Embedding and output."""

    @property
    def total(self) -> float:
        return self.dense + self.experts


def stage_params(workload: Workload, stage: PipelineStage) -> StageParams:
    model, run = workload.model, workload.run
    norms = model.norm_params
    expert_rest = model.expert_layer_params - model.expert_params - norms
    layers = stage.dense_layers * ((model.layer_params - norms) / run.tp + norms) + stage.expert_layers * (
        expert_rest / run.tp + norms
    )
    experts = stage.expert_layers * model.expert_params / run.tp / run.ep
    ends = 0.0
    if stage.is_first:
        ends += model.embedding_params / run.tp
    if stage.is_last:
        # A tied output on another rank than the embedding is a copy of it.
        copy = model.vocab * model.hidden if model.tied and not stage.is_first else 0
        ends += (model.head_params - norms // 2 + copy) / run.tp + norms // 2
    one = (model.layer_params if stage.dense_layers else 0) / run.tp
    if stage.expert_layers:
        one = max(one, expert_rest / run.tp + norms + model.expert_params / run.tp / run.ep)
    return StageParams(layers + ends, experts, one, ends)


def shard_ranks(workload: Workload, hardware: Hardware) -> tuple[int, int]:
    """Ranks over which states are sharded: for dense parameters and for experts."""
    run = workload.run
    ranks = 1 if run.sharding == "ddp" else workload.data_ranks * run.cp
    if run.sharding == "hsdp":
        ranks = max(1, min(ranks, hardware.gpus_per_node // run.tp))
    return ranks, max(1, ranks // run.ep)


def predict_memory(workload: Workload, hardware: Hardware) -> MemoryPrediction:
    """Memory of the device that needs the most, at its peak."""
    return max(
        (predict_stage(workload, hardware, one) for one in heavy_stages(workload)), key=lambda one: one.peak_bytes
    )


def predict_stage(workload: Workload, hardware: Hardware, stage: PipelineStage) -> MemoryPrediction:
    model, run = workload.model, workload.run
    params = stage_params(workload, stage)
    states = _states(workload, hardware, params)
    tokens = run.micro_batch * model.seq / run.cp
    kept = {has: kept_token_bytes(model, run, has_experts=has).on_rank(run) * tokens for has in (False, True)}
    layer = max(kept[False] if stage.dense_layers else 0.0, kept[True] if stage.expert_layers else 0.0)
    flight = in_flight(run, workload.micro_batches, stage)
    stored_layers = stage.dense_layers * kept[False] + stage.expert_layers * kept[True]
    if run.offload == "activations":
        stored_layers = min(stored_layers, 2 * layer)  # one in use, one being gathered
    activations = flight * stored_layers
    working = max((_working_bytes(workload, has) * tokens for has, count in _kinds(stage) if count), default=0.0)
    logits = 0.0
    if stage.is_last:
        logits = logits_token_bytes(model, run) / run.tp * tokens
        ends = residual_bytes(run) / sequence_ranks(run) + element_bytes(run) / input_ranks(run)
        activations += ends * model.hidden * tokens  # the inputs of the last norm and of the output
    buffers = _buffer_bytes(workload, params, shard_ranks(workload, hardware))
    # The backward of a layer begins after the loss has ended: the larger of the two.
    activations += max(0.0, working - logits)
    allocated = sum(states) + activations + logits + buffers
    groups = sum(ranks > 1 for ranks in (workload.data_ranks, run.tp, run.pp, run.cp, run.ep))
    context = hardware.context_bytes + (groups * COMMUNICATOR_BYTES if hardware.context_bytes else 0)
    return MemoryPrediction(
        params_bytes=round(states[0]),
        gradients_bytes=round(states[1]),
        master_bytes=round(states[2]),
        optimizer_bytes=round(states[3]),
        activations_bytes=round(activations),
        logits_bytes=round(logits),
        buffers_bytes=round(buffers),
        context_bytes=round(context + FRAGMENTATION_RATIO * allocated),
        capacity_bytes=hardware.memory_bytes,
        layer_bytes=round(layer),
        when="loss" if logits > working else "backward",
        error_ratio=ERROR_RATIO if run.base_weights == "full" else QUANTIZED_ERROR_RATIO,
        basis="calibrated",
    )


def _kinds(stage: PipelineStage) -> tuple[tuple[bool, int], tuple[bool, int]]:
    return (False, stage.dense_layers), (True, stage.expert_layers)


def _states(workload: Workload, hardware: Hardware, params: StageParams) -> tuple[float, float, float, float]:
    """Bytes of parameters, gradients, master weights and optimizer states."""
    run = workload.run
    each = param_bytes(run)
    dense_ranks, expert_ranks = shard_ranks(workload, hardware)
    shards = {
        "params": run.sharding in SHARDED_PARAMS,
        "gradients": run.sharding in (*SHARDED_PARAMS, "zero2"),
        "states": run.sharding != "ddp",
    }

    def held(per_param: float, part: str) -> float:
        if not shards[part]:
            return per_param * params.total
        return per_param * (params.dense / dense_ranks + params.experts / expert_ranks)

    found = [held(each.params, "params"), held(each.gradients, "gradients")]
    found += [held(each.master, "states"), held(each.optimizer, "states")]
    if run.trainable_params is not None:
        share = min(1.0, run.trainable_params / workload.model.params)
        found = [part * share for part in found]
        found[0] += held(_base_bytes(run, params), "params")
    if run.offload in ("optimizer", "parameters"):
        found[2] = found[3] = 0.0
    if run.offload == "parameters":
        found[0] = found[1] = 0.0
    return found[0], found[1], found[2], found[3]


def _base_bytes(run: PlannedRun, params: StageParams) -> float:
    """Bytes of a frozen parameter: layers in 4 bits, embedding and output in 16, as transformers loads them."""
    ends = params.ends / params.total
    return QUANTIZED_BYTES.get(run.base_weights, element_bytes(run)) * (1 - ends) + element_bytes(run) * ends


def _working_bytes(workload: Workload, has_experts: bool) -> float:
    """Per token, for the layer whose backward runs: recomputed activations and gradients on one rank."""
    model, run = workload.model, workload.run
    e = element_bytes(run)
    again = 0.0
    if run.recompute != "none":
        full = full_token_bytes(model, run, has_experts=has_experts)
        again = full.on_rank(run) - kept_token_bytes(model, run, has_experts=has_experts).on_rank(run)
        if run.recompute == "selective" and run.framework == "megatron" and model.attention == "math":
            again += core_bytes(model, run) / run.tp
    width = model.experts_per_token * model.expert_width if has_experts else model.ffn_width
    gradients = e * ((3 if model.is_gated else 2) * width / run.tp + 2 * model.hidden)
    gathered = 2 * e * model.hidden if run.tp > 1 and run.sequence_parallel else 0
    return max(0.0, again) + gradients + gathered


def _buffer_bytes(workload: Workload, params: StageParams, ranks: tuple[int, int]) -> float:
    """Gathered parameters, buckets, casts: memory that the way of training needs in addition to the states."""
    run, e = workload.run, element_bytes(workload.run)
    trained = 0.0 if run.trainable_params is not None else 1.0
    if run.sharding in SHARDED_PARAMS:
        if run.pp > 1:
            # A stage stays gathered between micro-batches, and its gradients add up in float32.
            return (e + 4 * trained) * params.total
        # This layer and the next, the gradients of one, embedding and output.
        return e * ((2 + trained) * params.layer + params.ends)
    # The largest product's weight in 16 bits, while it is in use.
    unpacked = 0.0 if run.base_weights == "full" else e * workload.model.hidden * workload.model.ffn_width / run.tp
    casts = e * (params.total - params.ends / 2) if is_autocast(run) else 0.0
    if run.sharding == "ddp":
        if workload.data_ranks == 1:
            return casts + unpacked
        copies = param_bytes(run).gradients * params.total * trained if run.framework == "torch" else 0.0
        return casts + unpacked + copies  # DDP's buckets are copies of the gradients (gradient_as_bucket_view=False)
    if run.framework == "torch":
        flat = FLAT_GRADIENT_BYTES * trained * (params.dense / ranks[0] + params.experts / ranks[1])
        return flat + 2.0 * e * min(params.total, BUCKET_PARAMS)
    return 0.0


def layer_parts(workload: Workload) -> dict[str, float]:
    """Bytes that one layer keeps for one micro-batch on one rank, by class of module; for the largest kind of layer."""
    model, run = workload.model, workload.run
    kept = kept_token_bytes(model, run, has_experts=model.expert_layers > 0)
    tokens = run.micro_batch * model.seq / run.cp
    return {name: size * tokens for name, size in kept.parts_on_rank(run).items()}
