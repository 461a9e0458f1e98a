import os
from dataclasses import dataclass


@dataclass
class GPTConfig:
    block_size: int = 48
    vocab_size: int = 4096
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 256
    bias: bool = False


@dataclass
class TrainConfig:
    micro_batch: int = 2
    grad_accum: int = 8
    max_steps: int = 80
    learning_rate: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 10
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    log_every: int = 10
    corpus_tokens: int = 400_000
    seed: int = 1337
    defer_sync: bool = False


def get_config():
    gpt, train = GPTConfig(), TrainConfig()
    train.defer_sync = bool(os.environ.get("REPAIRED"))
    return gpt, train
