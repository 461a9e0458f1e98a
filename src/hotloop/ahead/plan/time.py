"""Workload and hardware -> the time of one optimizer step and its parts.

The price of a layer is the sum of its parts: each matrix product by its FLOPs and the bytes of its three matrices, so
that efficiency saturates with size; attention by its FLOPs (fused) or by products and passes over the scores;
everything else by the bytes that it moves; and no layer is faster than the host's launches. Collectives of tensor and
context parallelism and of experts are not overlapped. Those of data parallelism overlap with compute and contend with
it. The pipeline's bubble is (p-1)/(v m) of the work (Narayanan et al., arXiv:2104.04473, section 2.2).

FLOPs: a multiplication with an addition is two operations. Attention counts the whole square, as if it were not causal,
by the convention of PaLM (arXiv:2204.02311, appendix B), so that figures compare with published ones.

Collectives: ring formulas as in NCCL (nccl-tests, doc/PERFORMANCE.md). For a message of S bytes, a rank sends 2 (n-1)/n
S in an all-reduce and (n-1)/n S in an all-gather or reduce-scatter. A ring over several nodes runs at the speed of the
slower of two links: the link inside a node, and the link between nodes that all ranks of a node share. Each further
node adds a hop; a tree all-reduce needs only log2 of the hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from hotloop.ahead.plan.hardware_files import Efficiency, read_efficiency
from hotloop.ahead.plan.memory import shard_ranks
from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware
from hotloop.core.link_fit import bus_factor
from hotloop.core.prediction import StepPrediction
from hotloop.core.utilization import rate_over_peak
from hotloop.core.workload import DecoderShape, PlannedRun, Workload


def attention_flops_per_token(model: DecoderShape) -> float:
    """Scores and weighted values of all layers, forward and backward: 12 L h s, where h is the width of all queries (of
    latent attention, half of that of queries and values)."""
    return 6.0 * model.layers * (model.attention_width + model.output_width) * model.seq


def model_flops_per_token(model: DecoderShape) -> float:
    """Forward and backward without recomputation: 6 N + 12 L h s (PaLM, appendix B); N counts only a token's own
    experts.

    Grouped queries change N, but not the second term: every query meets every key.

    >>> round(model_flops_per_token(DecoderShape(layers=32, hidden=4096, heads=32, vocab=50368, seq=2048)) / 1e9, 1)
    43.1
    """
    return 6.0 * model.active_params + attention_flops_per_token(model)


def hardware_flops_per_token(model: DecoderShape, recompute: str) -> float:
    """The FLOPs that a device computes: ``full`` repeats the layers' forward, ``selective`` repeats attention's forward
    (Korthikanti et al., arXiv:2205.05198, section 4 and appendix A)."""
    again = {"none": 0.0, "selective": attention_flops_per_token(model) / 3}
    if recompute not in again:
        layers = model.active_params - model.embedding_params - model.head_params
        again[recompute] = 2.0 * layers + attention_flops_per_token(model) / 3
    return model_flops_per_token(model) + again[recompute]


@dataclass(frozen=True, slots=True)
class Group:
    """A group of communicating devices: how many, and how many of them share a node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


def group(ranks: int, stride: int, gpus_per_node: int) -> Group:
    """``ranks`` devices, ``stride`` apart, where devices are numbered node by node."""
    return Group(ranks, max(1, min(ranks, gpus_per_node // stride)))


def collective_ns(
    kind: str, message_bytes: float, members: Group, hardware: Hardware, *, inside_ratio: float, between_ratio: float
) -> float:
    """Time of one collective without hops between nodes; 0 for one rank. ``bus_factor`` defines how bytes are
    counted."""
    ranks = members.ranks
    if ranks < 2:
        return 0.0
    rounds = 2 if kind == "all-reduce" else 1
    # A ring over fewer devices has fewer hops; half the latency is the launch.
    share = 0.5 + 0.5 * min(1.0, (members.per_node - 1) / max(1, hardware.gpus_per_node - 1))
    rate = hardware.inside.bytes_per_s * inside_ratio
    if members.nodes > 1:
        node_rate = members.per_node * hardware.between.bytes_per_s * between_ratio
        rate = min(rate, node_rate) if members.per_node > 1 else node_rate
    wire_bytes = message_bytes * bus_factor(kind, ranks)
    return hardware.inside.latency_ns * share * rounds / 2 + wire_bytes / rate * 1e9


def hops_ns(kind: str, members: Group, hardware: Hardware, hop_ratio: float) -> float:
    """Time until the first bytes have visited all nodes: a ring's hops, or a tree's for an all-reduce."""
    nodes = members.nodes
    if nodes < 2:
        return 0.0
    hops = min(2 * log2(nodes), 2.0 * (nodes - 1)) if kind == "all-reduce" else nodes - 1
    return hops * hardware.between.latency_ns * hop_ratio


ADAM_BYTES = 28
"""Reads a parameter's weight, gradient and two moments, and writes its weight and moments, in float32."""
CLIP_BYTES = 12
"""Reads the gradient for its norm, then reads and writes it."""
OPTIMIZER_BYTES = {"adamw": ADAM_BYTES, "sgd": 20, "adafactor": 16, "adamw-8bit": 16}
SCORE_PASSES = 5
"""How many times unfused attention moves its scores in the forward: mask and softmax, dropout (Korthikanti et al.: 5 a
s bytes per token are kept); the backward moves them as often again."""
FLASH_BACKWARD = 2.5
"""Backward over forward FLOPs of fused attention: five products for two (FlashAttention-2, arXiv:2307.08691, 3.1)."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """Nanoseconds of one layer or the head: forward and backward, compute and communication."""

    forward: float = 0.0
    backward: float = 0.0
    attention: float = 0.0
    """The forward of attention's core alone, which selective recomputation repeats."""
    sent: float = 0.0
    """The forward's collectives that do not overlap with compute; the backward's take as long."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates that one device reaches in this run."""

    product: float
    """FLOPs per second."""
    product_bytes: float
    """Bytes of one element of a product's inputs."""
    attention: float
    memory: float
    """Bytes per second."""
    passes: float
    wide: int
    """Bytes of one element of an activation."""
    idle_outputs: float
    backward: float
    """Backward over forward time of everything but fused attention."""


def predict_step(workload: Workload, hardware: Hardware, efficiency: Efficiency | None = None) -> StepPrediction:
    """Time of one optimizer step, from the batch on the device to the changed weights; without input wait.

    Raises UsageError if the device does not support the run's precision.
    """
    constants = read_efficiency(hardware) if efficiency is None else efficiency
    model, run = workload.model, workload.run
    peak = peak_flops(hardware, run.precision)
    rates = _reached(model, run, hardware, constants, peak)
    tokens = run.micro_batch * model.seq // run.cp
    send = _Sender(workload, hardware, constants)

    dense = _layer(model, run, rates, tokens, 0, send)
    mixed = _layer(model, run, rates, tokens, model.experts, send) if model.expert_layers else dense
    head = _head(model, run, rates, tokens)
    share = model.expert_layers / model.layers
    dense_ns = _layer_ns(dense, run, constants, send, model.layer_params)
    local_params = model.expert_layer_params - model.expert_params * (1 - 1 / run.ep)  # of one rank, with its experts
    mixed_ns = _layer_ns(mixed, run, constants, send, local_params) if share else dense_ns
    # If the ranks of a pipeline do not divide the layers, all wait for the rank with one more layer.
    layers = -(-model.layers // run.pp)
    per_layer = tuple(a * (1 - share) + b * share for a, b in zip(dense_ns, mixed_ns, strict=True))
    compute, exposed = layers * per_layer[0], layers * per_layer[1]
    # All ranks of a pipeline wait for its slowest, which has the head.
    head_ns = head.forward + head.backward
    waits = exposed + send.to_next_stage_ns()
    slot = compute + head_ns + waits
    surplus = (1 - model.layers / run.pp / layers) * (compute + exposed)
    mean_slot = slot - surplus - head_ns * (1 - 1 / run.pp)
    count = workload.micro_batches
    bubble = mean_slot * (run.pp - 1) / run.pipeline_chunks
    reduced = send.once_a_step_ns(layers * per_layer[2], layers * per_layer[3])
    stepped = _optimizer_ns(workload, hardware, constants)
    compute_ns = count * (compute + head_ns)
    exposed_ns = count * waits + reduced
    offloaded = _offload_ns(workload, hardware, compute_ns + exposed_ns + bubble)
    mid = compute_ns + exposed_ns + bubble + stepped + offloaded
    rate = workload.tokens_per_step / workload.gpus / mid * 1e9
    error = constants.megatron_error_ratio if run.framework == "megatron" else constants.error_ratio
    return StepPrediction(
        low_ns=mid / (1 + error),
        mid_ns=mid,
        high_ns=mid * (1 + error),
        compute_ns=compute_ns,
        exposed_ns=exposed_ns,
        bubble_ns=bubble,
        optimizer_ns=stepped,
        offload_ns=offloaded,
        tokens_per_s_per_gpu=rate,
        mfu_ratio=rate_over_peak(rate, model_flops_per_token(model), peak),
        hfu_ratio=rate_over_peak(rate, hardware_flops_per_token(model, run.recompute), peak),
        basis="formula",
    )


def peak_flops(hardware: Hardware, precision: str) -> float:
    """The device's dense peak in the precision of a run; UsageError if it has none."""
    try:
        return hardware.peak(precision)
    except KeyError:
        have = ", ".join(sorted(hardware.peak_flops))
        raise UsageError(
            f"run.precision = {precision!r}: {hardware.name} computes in {have}; choose one of these"
        ) from None


def _reached(model: DecoderShape, run: PlannedRun, hardware: Hardware, constants: Efficiency, peak: float) -> _Rates:
    is_fp8, is_megatron = run.precision == "fp8", run.framework == "megatron"
    half = peak_flops(hardware, "bf16" if is_fp8 else run.precision)
    fused = constants.compiled_passes if run.compiled else constants.eager_passes
    return _Rates(
        product=peak * (constants.fp8_ratio if is_fp8 else constants.product_ratio),
        # In 8 bits, inputs are read in 16 bits, written in 8 bits and read again.
        product_bytes=4 if run.precision in ("fp8", "fp32") else 2,
        attention=half * (constants.megatron_attention_ratio if is_megatron else constants.attention_ratio),
        memory=hardware.memory_bytes_per_s * constants.memory_ratio,
        passes=constants.megatron_passes if is_megatron else fused,
        wide=4 if run.precision == "fp32" else 2,
        idle_outputs=constants.idle_outputs,
        # Adapters: frozen weights have no gradient, but their inputs do.
        backward=constants.backward_ratio * (1 + trained_share(model, run)),
    )


def _products_ns(shapes: Sequence[tuple[float, float, float, float]], rates: _Rates) -> float:
    """For (count, m, n, k) products: FLOPs over the compute rate, plus the bytes of the three matrices over the memory
    rate.

    The last wave of tiles is partly empty: its idle outputs cost as much as useful ones.
    """
    flops = sum(2 * (count * m * n + rates.idle_outputs) * k for count, m, n, k in shapes)
    elements = sum(count * (m * n + n * k + k * m) for count, m, n, k in shapes)
    return (flops / rates.product + elements * rates.product_bytes / rates.memory) * 1e9


def _layer(model: DecoderShape, run: PlannedRun, rates: _Rates, tokens: float, experts: int, send: _Sender) -> _Pass:
    h, tp = model.hidden, run.tp
    queries, keys = model.attention_width / tp, (model.kv_width + model.values_width) / tp
    products = [(1.0, tokens, outputs, inputs) for outputs, inputs in model.attention_products(tp)]
    blocks = 2 if model.is_gated else 1
    # The least bytes that two norms, two residual sums and the activation move.
    rows = 10.0 * h / (tp if run.sequence_parallel else 1)
    if model.dropout:
        rows += 5.0 * h / (tp if run.sequence_parallel else 1)
    rows += 2 * (queries + keys) + 2 * model.latent_width
    shared = model.shared_experts if experts else 1
    width = model.expert_width if experts else model.ffn_width
    if shared:
        products += [(1.0, tokens, shared * blocks * width / tp, h), (1.0, tokens, h, shared * width / tp)]
        rows += (blocks + 1) * shared * width / tp
    sent = send.tensor_ns() + send.context_ns()
    if experts:
        local = experts / run.ep
        routed = tokens * model.experts_per_token / local
        products += [(1.0, tokens, experts, h), (local, routed, blocks * width / tp, h), (local, routed, h, width / tp)]
        # Tokens are sorted by expert and back: each copy is read and written twice.
        rows += model.experts_per_token * ((blocks + 1) * width / tp + 4 * h)
        sent += send.experts_ns()
    products_ns = _products_ns(products, rates)
    moved_ns = rates.passes * rates.wide * rows * tokens / rates.memory * 1e9
    attention_forward, attention_backward = _attention_ns(model, run, rates, tokens)
    forward = products_ns + moved_ns + attention_forward
    backward = rates.backward * (products_ns + moved_ns) + attention_backward
    return _Pass(forward, backward, attention_forward, sent)


def _attention_ns(model: DecoderShape, run: PlannedRun, rates: _Rates, tokens: float) -> tuple[float, float]:
    """Forward and backward of scores and weighted values; only the causal half if fused."""
    if model.attention == "flash":
        width = (model.attention_width + model.output_width) / run.tp
        forward = tokens * model.seq * width / rates.attention * 1e9
        return forward, FLASH_BACKWARD * rates.backward / 2 * forward
    heads = model.heads / run.tp * run.micro_batch
    rows, width, value = model.seq / run.cp, model.attention_width / model.heads, model.output_width / model.heads
    products = _products_ns([(heads, rows, model.seq, width), (heads, rows, value, model.seq)], rates)
    scores = SCORE_PASSES * rates.wide * heads * rows * model.seq / rates.memory * 1e9
    return products + scores, rates.backward * products + scores


def _head(model: DecoderShape, run: PlannedRun, rates: _Rates, tokens: float) -> _Pass:
    """The output's product and the loss; its gradient is computed with it."""
    vocab = model.vocab / run.tp
    product = _products_ns([(1.0, tokens, vocab, model.hidden)], rates)
    # Fused: written, read and overwritten in 16 bits. Else also a float32 copy, its log-softmax and both gradients.
    loss = (6 if run.fused_loss else 30) * tokens * vocab / rates.memory * 1e9
    return _Pass(forward=product + loss, backward=rates.backward * product)


def _layer_ns(
    layer: _Pass, run: PlannedRun, constants: Efficiency, send: _Sender, params: float
) -> tuple[float, float, float, float]:
    """One layer of one micro-batch: compute, collectives without overlap, and the time of its forward and backward in
    which nothing is sent yet."""
    host = constants.megatron_host_ns if run.framework == "megatron" else constants.host_ns
    host = 0.0 if run.compiled else host
    again = {"none": 0.0, "selective": layer.attention, "full": layer.forward}[run.recompute]
    sent_again = layer.sent if run.recompute == "full" else 0.0
    held = params / run.tp
    gathered = send.gather_ns(held)
    forward = max(layer.forward, host - layer.sent)
    launched = host * (2 if run.recompute == "full" else 1)
    work = layer.backward + again + send.gradient_bytes_moved(held) / send.memory_bytes_per_s * 1e9
    backward = max(work, launched - layer.sent - sent_again)
    sent_back = gathered + send.scatter_ns(held)
    beside = send.beside(forward, gathered) + send.beside(backward, sent_back) + send.layer_hops_ns()
    free = max(0.0, forward - gathered), max(0.0, backward - sent_back)
    return forward + backward, beside + 2 * layer.sent + sent_again, *free


class _Sender:
    """The collectives of one workload, each in nanoseconds on one rank."""

    def __init__(self, workload: Workload, hardware: Hardware, constants: Efficiency) -> None:
        self._workload, self._hardware, self._constants = workload, hardware, constants
        run, per_node = workload.run, hardware.gpus_per_node
        self._tensor = group(run.tp, 1, per_node)
        self._context = group(run.cp, run.tp, per_node)
        self._experts = group(run.ep, run.tp * run.cp, per_node)
        self._data = group(workload.data_ranks * run.cp, run.tp, per_node)
        self._shards = self._data
        if run.sharding == "hsdp":
            self._shards = Group(self._data.per_node, self._data.per_node)
        self._tokens = run.micro_batch * workload.model.seq // run.cp
        self._wide = 4 if run.precision == "fp32" else 2
        # Autocast reduces float32 gradients; Megatron reduces those of fp16 in 16 bits.
        narrow = run.precision == "pure-bf16" or (run.precision == "fp16" and run.framework == "megatron")
        self._gradient_bytes = 2 if narrow else 4
        self.memory_bytes_per_s = hardware.memory_bytes_per_s * constants.memory_ratio
        self._trained = trained_share(workload.model, run)
        self._is_sharded = run.sharding in ("zero3", "fsdp", "hsdp")

    def _ns(self, kind: str, message_bytes: float, members: Group, *, hidden: bool = False) -> float:
        inside, between = self._constants.inside_ratio, self._constants.between_ratio
        sent = collective_ns(kind, message_bytes, members, self._hardware, inside_ratio=inside, between_ratio=between)
        return sent if hidden else sent + hops_ns(kind, members, self._hardware, self._constants.hop_ratio)

    def beside(self, compute_ns: float, sent_ns: float) -> float:
        """The time that a collective adds to the compute with which it overlaps."""
        if not self._workload.run.overlap:
            return sent_ns
        return max(0.0, sent_ns - compute_ns) + self._constants.contention_ratio * min(compute_ns, sent_ns)

    def tensor_ns(self) -> float:
        """For one layer's forward: after attention and after the feed-forward block (arXiv:1909.08053, section 3)."""
        return 2 * self._ns("all-reduce", self._tokens * self._workload.model.hidden * self._wide, self._tensor)

    def context_ns(self) -> float:
        """For one layer's forward: keys and values of the whole sequence."""
        run, model = self._workload.run, self._workload.model
        held = self._tokens * run.cp * (model.kv_width + model.values_width) / run.tp * self._wide
        return self._ns("all-gather", held, self._context)

    def experts_ns(self) -> float:
        """For one layer's forward: tokens to their experts and back."""
        model = self._workload.model
        sent = self._tokens * model.experts_per_token * model.hidden * self._wide / self._workload.run.tp
        return 2 * self._ns("all-to-all", sent, self._experts)

    def gather_ns(self, params: float) -> float:
        """A sharded layer's weights, gathered for compute."""
        return self._ns("all-gather", params * self._wide, self._shards, hidden=True) if self._is_sharded else 0.0

    def scatter_ns(self, params: float) -> float:
        """A layer's gradients after each micro-batch, if they are sharded."""
        if not self._is_sharded and self._workload.run.sharding != "zero2":
            return 0.0
        return self._ns("reduce-scatter", params * self._trained * self._gradient_bytes, self._shards, hidden=True)

    def layer_hops_ns(self) -> float:
        """The part of a layer's sharded collectives that does not overlap with compute: each synchronizes all nodes."""
        gathers = 2 if self._is_sharded else 0
        scatters = 1 if self._is_sharded or self._workload.run.sharding == "zero2" else 0
        return (gathers + scatters) * hops_ns("all-gather", self._shards, self._hardware, self._constants.hop_ratio)

    def gradient_bytes_moved(self, params: float) -> float:
        """Casts of weights for the pass, casts and sums of gradients; Megatron's products add directly into its
        gradients."""
        run = self._workload.run
        return (
            params * self._trained * (4 if run.framework == "megatron" else 6 if run.precision == "pure-bf16" else 12)
        )

    def to_next_stage_ns(self) -> float:
        """One micro-batch's activations to the next rank of the pipeline and their gradients back, for each chunk."""
        run, hardware = self._workload.run, self._hardware
        if run.pp == 1:
            return 0.0
        bytes_sent = self._tokens * self._workload.model.hidden * self._wide / run.tp
        inside = self._workload.gpus <= hardware.gpus_per_node
        link = hardware.inside if inside else hardware.between
        return 2 * run.pipeline_chunks * link.time_ns(bytes_sent)

    def once_a_step_ns(self, forward_ns: float, backward_ns: float) -> float:
        """The rest of the data-parallel collectives once a step: gradients that overlap with the backward, and weights
        that ranks share, which overlap with the next forward."""
        workload = self._workload
        run = workload.run
        params = rank_params(workload) * self._trained
        gradients, weights = params * self._gradient_bytes, params * self._wide
        if self._is_sharded:
            if run.sharding != "hsdp":
                return 0.0
            across = Group(self._data.nodes, 1)
            return self.beside(backward_ns, self._ns("all-reduce", gradients / self._shards.ranks, across))
        if run.sharding == "ddp":
            return self.beside(backward_ns, self._ns("all-reduce", gradients, self._data))
        weights_ns = self.beside(forward_ns, self._ns("all-gather", weights, self._data))
        if run.sharding == "zero2":
            return weights_ns
        return weights_ns + self.beside(backward_ns, self._ns("reduce-scatter", gradients, self._data))


def trained_share(model: DecoderShape, run: PlannedRun) -> float:
    """The trained part of the parameters: smaller with adapters."""
    return 1.0 if run.trainable_params is None else min(1.0, run.trainable_params / model.params)


def rank_params(workload: Workload) -> float:
    """Parameters of one model-parallel rank before data-parallel sharding; for experts, those of its expert rank."""
    model, run = workload.model, workload.run
    experts = model.expert_layers * model.expert_params
    return (model.params - experts + experts / run.ep) / (run.tp * run.pp)


def _optimizer_ns(workload: Workload, hardware: Hardware, constants: Efficiency) -> float:
    run = workload.run
    if run.offload == "optimizer":
        return float(constants.step_host_ns)
    held = rank_params(workload) * trained_share(workload.model, run)
    moved = held / shard_ranks(workload, hardware)[0] * (OPTIMIZER_BYTES[run.optimizer] + CLIP_BYTES)
    written = moved / (hardware.memory_bytes_per_s * constants.memory_ratio) * 1e9
    return written + constants.step_host_ns


def _offload_ns(workload: Workload, hardware: Hardware, present_ns: float) -> float:
    """Bytes over the host's link; parameters and activations overlap with everything else, the optimizer waits for its
    own.

    Assumes that a device's share of the host's memory is as fast as its link to the host.
    """
    run, model = workload.run, workload.model
    if run.offload == "none":
        return 0.0
    held = rank_params(workload) / shard_ranks(workload, hardware)[0]
    if run.offload == "optimizer":
        moved = held * trained_share(model, run) * (4 + 2 + OPTIMIZER_BYTES[run.optimizer])
        return moved / hardware.host_bytes_per_s * 1e9
    if run.offload == "parameters":
        moved = 6.0 * held
    else:
        moved = 2 * 34.0 * run.micro_batch * model.seq / run.cp * model.hidden * model.layers / run.pp / run.tp
    return max(0.0, workload.micro_batches * moved / hardware.host_bytes_per_s * 1e9 - present_ns)
