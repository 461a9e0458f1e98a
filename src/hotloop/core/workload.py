"""The input of a plan: a model, how it is trained, on which hardware. Checked values; no arithmetic of time.

All counts are of the complete model, before any sharding, unless the name says ``per_gpu``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from hotloop.core.errors import UsageError

PRECISIONS = ("fp32", "bf16", "pure-bf16", "fp16", "fp8")
"""bf16 and fp16 are autocast: weights and optimizer states in float32. fp8 computes its products in 8 bits, the rest
like bf16. pure-bf16 keeps everything in bfloat16."""
RECOMPUTES = ("none", "selective", "full")
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp")
ATTENTIONS = ("flash", "math")
OPTIMIZERS = ("adamw", "sgd", "adafactor", "adamw-8bit")
LATENT_KEYS = ("kv_rank", "q_rank", "rope_width", "value_width")
ROPE_WIDTH = 64
BASE_WEIGHTS = ("full", "nf4", "nf4-dq")
"""Of frozen weights: as in ``precision``, or QLoRA's 4 bits, without and with its double quantization."""
OFFLOADS = ("none", "optimizer", "parameters", "activations")
RUN_CHOICES = {
    "precision": PRECISIONS,
    "recompute": RECOMPUTES,
    "sharding": SHARDINGS,
    "optimizer": OPTIMIZERS,
    "offload": OFFLOADS,
    "base_weights": BASE_WEIGHTS,
    "framework": ("torch", "megatron"),
}
"""Of a planned run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder transformer; ``heads`` and ``kv_heads`` are of attention, ``ffn`` the width of a feed-forward block."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int
    """Tokens of one sequence."""
    kv_heads: int | None = None
    head_width: int | None = None
    """Width of one attention head; hidden / heads by default."""
    ffn: int | None = None
    """4 x hidden by default."""
    is_gated: bool = False
    """Whether a feed-forward block has three products (SwiGLU), not two."""
    tied: bool = True
    """Whether the embedding is also the output's weight."""
    learned_positions: bool = False
    bias: bool = False
    dropout: bool = False
    experts: int = 1
    experts_per_token: int = 1
    shared_experts: int = 0
    dense_layers: int = 0
    """In a mixture of experts: the first layers, whose feed-forward block is ``ffn`` wide and has no experts."""
    expert_ffn: int | None = None
    kv_rank: int | None = None
    """Latent attention (DeepSeek-V2, arXiv:2405.04434): width of the compressed keys and values; ``head_width`` is then
    that of a head's part without positions."""
    q_rank: int | None = None
    """The same for the queries; None if they are not compressed."""
    rope_width: int | None = None
    """For latent attention: a head's rotary part, 64 by default; all heads share that of the keys."""
    value_width: int | None = None
    """For latent attention: a head's values; ``head_width`` by default."""
    attention: str = "flash"

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "seq", "experts", "experts_per_token"):
            require_count(f"model.{name}", getattr(self, name))
        for name in ("kv_heads", "head_width", "ffn", "expert_ffn", *LATENT_KEYS):
            if getattr(self, name) is not None:
                require_count(f"model.{name}", getattr(self, name))
        for name in ("shared_experts", "dense_layers"):
            require_count(f"model.{name}", getattr(self, name), least=0)
        require_choice("model.attention", self.attention, ATTENTIONS)
        if self.head_width is None and self.hidden % self.heads:
            raise UsageError(
                f"model.heads = {self.heads} does not divide model.hidden = {self.hidden}: give head_width"
            )
        if self.heads % self.kv_head_count:
            raise UsageError(f"model.kv_heads = {self.kv_heads} does not divide model.heads = {self.heads}")
        given = [name for name in LATENT_KEYS[1:] if getattr(self, name) is not None]
        if self.kv_rank is None and given:
            raise UsageError(f"model.{given[0]} = {getattr(self, given[0])} belongs to latent attention: give kv_rank")
        if self.kv_rank is not None and self.kv_head_count != self.heads:
            raise UsageError(
                f"model.kv_heads = {self.kv_heads}: latent attention has keys for every head; leave it out"
            )
        if self.experts_per_token > self.experts:
            raise UsageError(
                f"model.experts_per_token = {self.experts_per_token} is more than model.experts = {self.experts}"
            )
        if self.dense_layers > self.layers:
            raise UsageError(f"model.dense_layers = {self.dense_layers} is more than model.layers = {self.layers}")

    @property
    def kv_head_count(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def _head(self) -> int:
        return self.hidden // self.heads if self.head_width is None else self.head_width

    @property
    def _rope(self) -> int:
        """For latent attention, in addition to a head's width."""
        return 0 if self.kv_rank is None else ROPE_WIDTH if self.rope_width is None else self.rope_width

    @property
    def attention_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * (self._head + self._rope)

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token."""
        return self.attention_width // self.heads * self.kv_head_count

    @property
    def values_width(self) -> int:
        """Width of all values of a token."""
        return self.kv_head_count * (self._head if self.value_width is None else self.value_width)

    @property
    def output_width(self) -> int:
        """Width of attention's output for a token, all heads."""
        return self.values_width // self.kv_head_count * self.heads

    @property
    def latent_width(self) -> int:
        """For latent attention: width of the compressed queries, keys and values of a token; else 0."""
        return (self.kv_rank or 0) + (self.q_rank or 0)

    @property
    def latent_up_width(self) -> int:
        """For latent attention: width after expanding the compressed keys and values: keys without positions,
        values."""
        return self.heads * self._head + self.values_width

    def attention_products(self, ranks: int = 1) -> list[tuple[float, float]]:
        """(outputs, inputs) of the products outside attention's core, split over tensor-parallel ranks.

        Those that compress are computed on every rank.
        """
        h, q = self.hidden, self.attention_width / ranks
        out = (float(h), self.output_width / ranks)
        if self.kv_rank is None:
            return [(q + (self.kv_width + self.values_width) / ranks, float(h)), out]
        queries = [(float(self.q_rank), float(h)), (q, float(self.q_rank))] if self.q_rank else [(q, float(h))]
        up = (self.latent_up_width / ranks, float(self.kv_rank))
        return [*queries, (float(self.kv_rank + self._rope), float(h)), up, out]

    @property
    def ffn_width(self) -> int:
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert_width(self) -> int:
        return self.ffn_width if self.expert_ffn is None else self.expert_ffn

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        return self.layers - self.dense_layers if self.experts > 1 else 0

    @property
    def attention_params(self) -> int:
        """Of one layer: queries, keys, values and output."""
        weights = round(sum(outputs * inputs for outputs, inputs in self.attention_products()))
        biases = self.attention_width + 2 * self.kv_width + self.hidden if self.bias else 0
        return weights + self.latent_width + biases  # each compressed part has a norm

    def ffn_params(self, width: int) -> int:
        """Of one feed-forward block of this width."""
        products = 3 if self.is_gated else 2
        return products * self.hidden * width + ((products - 1) * width + self.hidden if self.bias else 0)

    @property
    def norm_params(self) -> int:
        """Of one layer, which has two norms."""
        return 2 * self.hidden * (2 if self.bias else 1)

    @property
    def layer_params(self) -> int:
        """Of one layer without experts."""
        return self.attention_params + self.ffn_params(self.ffn_width) + self.norm_params

    @property
    def expert_params(self) -> int:
        """Of all routed experts of one layer."""
        return self.experts * self.ffn_params(self.expert_width)

    @property
    def expert_layer_params(self) -> int:
        """Of one layer with experts: routed and shared ones, and the router."""
        shared = self.shared_experts * self.ffn_params(self.expert_width)
        return self.attention_params + self.norm_params + self.expert_params + shared + self.experts * self.hidden

    @property
    def embedding_params(self) -> int:
        positions = self.seq * self.hidden if self.learned_positions else 0
        return self.vocab * self.hidden + positions

    @property
    def head_params(self) -> int:
        """Of the output, 0 if it is tied, and of the last norm."""
        return (0 if self.tied else self.vocab * self.hidden) + self.norm_params // 2

    @property
    def params(self) -> int:
        dense = self.layers - self.expert_layers
        blocks = dense * self.layer_params + self.expert_layers * self.expert_layer_params
        return blocks + self.embedding_params + self.head_params

    @property
    def active_params(self) -> int:
        """The parameters that a token passes through: of the routed experts, only its own."""
        idle = self.experts - self.experts_per_token
        return self.params - self.expert_layers * idle * self.ffn_params(self.expert_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """How the model is trained. ``micro_batch`` is of one data-parallel rank, ``global_batch`` of all, in sequences."""

    micro_batch: int
    global_batch: int
    precision: str = "bf16"
    recompute: str = "none"
    sharding: str = "ddp"
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = True
    """Norms and dropout split over the tensor-parallel ranks, as Megatron's option; no effect with tp = 1."""
    pipeline_chunks: int = 1
    """Model chunks of one pipeline rank (interleaved schedule)."""
    optimizer: str = "adamw"
    offload: str = "none"
    compiled: bool = False
    fused_loss: bool = False
    """Whether the cross entropy works without a float32 copy of the logits."""
    overlap: bool = True
    """Whether communication of gradients and shards overlaps with compute."""
    trainable_params: int | None = None
    """Of adapters on frozen weights (LoRA); None if every parameter is trained."""
    base_weights: str = "full"
    """Of the frozen weights under adapters: full | nf4 | nf4-dq (QLoRA, arXiv:2305.14314)."""
    framework: str = "torch"
    """torch | megatron: whose buffers count in the memory (megatron keeps float32 gradients for 16-bit weights)."""

    def __post_init__(self) -> None:
        for name in ("micro_batch", "global_batch", "tp", "pp", "cp", "ep", "pipeline_chunks"):
            require_count(f"run.{name}", getattr(self, name))
        if self.trainable_params is not None:
            require_count("run.trainable_params", self.trainable_params)
        for name, choices in RUN_CHOICES.items():
            require_choice(f"run.{name}", getattr(self, name), choices)
        if self.base_weights != "full" and self.trainable_params is None:
            raise UsageError(
                f"run.base_weights = {self.base_weights!r}: weights in 4 bits are not trained; give trainable_params"
            )

    @property
    def model_ranks(self) -> int:
        """GPUs that hold one copy of the model together, before the data-parallel states are sharded."""
        return self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and its run on ``gpus`` devices."""

    model: DecoderShape
    run: PlannedRun
    gpus: int

    def __post_init__(self) -> None:
        require_count("hardware.count", self.gpus)
        model, run = self.model, self.run
        if self.gpus % run.model_ranks:
            raise UsageError(
                f"tp x pp x cp = {run.model_ranks} does not divide hardware.count = {self.gpus}: choose factors of it"
            )
        if model.heads % run.tp:
            raise UsageError(f"run.tp = {run.tp} does not divide model.heads = {model.heads}")
        if run.pp > model.layers:
            raise UsageError(f"run.pp = {run.pp} is more than model.layers = {model.layers}: give each rank a layer")
        if model.experts % run.ep:
            raise UsageError(f"run.ep = {run.ep} does not divide model.experts = {model.experts}")
        if self.data_ranks % run.ep and run.ep > 1:
            raise UsageError(f"run.ep = {run.ep} does not divide the {self.data_ranks} data-parallel ranks")
        at_once = run.micro_batch * self.data_ranks
        if run.global_batch % at_once:
            raise UsageError(
                f"run.global_batch = {run.global_batch} is not a multiple of run.micro_batch x data-parallel ranks = "
                f"{run.micro_batch} x {self.data_ranks} = {at_once}"
            )

    @property
    def data_ranks(self) -> int:
        return self.gpus // self.run.model_ranks

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one optimizer step on one data-parallel rank."""
        return self.run.global_batch // (self.run.micro_batch * self.data_ranks)

    @property
    def tokens_per_step(self) -> int:
        return self.run.global_batch * self.model.seq


def require_count(name: str, value: object, least: int = 1) -> None:
    """UsageError unless it is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} = {value!r}: give a whole number of {least} or more")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """UsageError that lists the choices unless it is one."""
    if value not in choices:
        raise UsageError(f"{name} = {value!r}: choose one of {', '.join(choices)}")


def field_names(kind: type) -> tuple[str, ...]:
    """Names of a data class's fields, for messages about unknown keys."""
    return tuple(field.name for field in fields(kind))
