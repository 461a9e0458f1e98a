"""Denoising pre-training of a small encoder/decoder on token sequences (span infilling)."""
import argparse
import contextlib
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

PAD, BOS, MASK = 0, 1, 2


def get_parser():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab-size", type=int, default=4000)
    p.add_argument("--embed-dim", type=int, default=192)
    p.add_argument("--ffn-dim", type=int, default=512)
    p.add_argument("--encoder-layers", type=int, default=2)
    p.add_argument("--decoder-layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--tokens-per-sample", type=int, default=32)
    p.add_argument("--batch-size", type=int, default=3)
    p.add_argument("--update-freq", type=int, default=4)
    p.add_argument("--max-update", type=int, default=120)
    p.add_argument("--warmup-updates", type=int, default=20)
    p.add_argument("--lr", type=float, default=5e-4)
    p.add_argument("--clip-norm", type=float, default=1.0)
    p.add_argument("--log-interval", type=int, default=20)
    p.add_argument("--seed", type=int, default=7)
    return p


class DenoisingModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab_size, cfg.embed_dim, padding_idx=PAD)
        self.positions = nn.Embedding(cfg.tokens_per_sample + 1, cfg.embed_dim)
        enc = nn.TransformerEncoderLayer(cfg.embed_dim, cfg.heads, cfg.ffn_dim, 0.0, batch_first=True, norm_first=True)
        dec = nn.TransformerDecoderLayer(cfg.embed_dim, cfg.heads, cfg.ffn_dim, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(enc, cfg.encoder_layers, nn.LayerNorm(cfg.embed_dim), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(dec, cfg.decoder_layers, nn.LayerNorm(cfg.embed_dim))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(cfg.tokens_per_sample))
        nn.init.normal_(self.embed.weight, std=cfg.embed_dim ** -0.5)

    def _embed(self, tokens):
        pos = torch.arange(tokens.size(1), device=tokens.device)
        return self.embed(tokens) + self.positions(pos)

    def forward(self, noised, prev_output, target):
        memory = self.encoder(self._embed(noised))
        h = self.decoder(self._embed(prev_output), memory, tgt_mask=self.causal, tgt_is_causal=True)
        logits = F.linear(h, self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


class DenoisingTask:
    """Serves batches out of one in-memory corpus, sharded by rank."""

    def __init__(self, cfg, rank, world):
        g = torch.Generator().manual_seed(cfg.seed)
        n = 2048 * cfg.tokens_per_sample
        ranks = torch.rand(n, generator=g).pow(3.0)
        corpus = (ranks * (cfg.vocab_size - 3)).long() + 3
        self.corpus = corpus.view(-1, cfg.tokens_per_sample)[rank::world].contiguous()
        self.gen = torch.Generator().manual_seed(cfg.seed + rank)
        self.batch_size = cfg.batch_size

    def next_batch(self):
        idx = torch.randint(len(self.corpus), (self.batch_size,), generator=self.gen)
        target = self.corpus[idx]
        keep = torch.rand(target.shape, generator=self.gen) > 0.3
        noised = torch.where(keep, target, torch.full_like(target, MASK))
        prev = torch.cat([torch.full((len(idx), 1), BOS), target[:, :-1]], 1)
        return noised, prev, target


class Trainer:
    def __init__(self, cfg, model, task):
        self.cfg, self.model, self.task = cfg, model, task
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98), fused=True)
        self.num_updates = 0

    def set_lr(self):
        w = self.cfg.warmup_updates
        t = self.num_updates + 1
        scale = t / w if t <= w else math.sqrt(w / t)
        for group in self.optimizer.param_groups:
            group["lr"] = self.cfg.lr * scale

    def train_step(self, samples):
        self.model.train()
        self.set_lr()
        total = 0.0
        for i, sample in enumerate(samples):
            last = i == len(samples) - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss = self.model(*sample) / len(samples)
                loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_updates += 1
        return total


def main():
    cfg = get_parser().parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed)
    model = DistributedDataParallel(DenoisingModel(cfg))
    task = DenoisingTask(cfg, rank, world)
    trainer = Trainer(cfg, model, task)
    if rank == 0:
        print("num. params:", sum(p.numel() for p in model.parameters()))
    start = time.time()
    while trainer.num_updates < cfg.max_update:
        samples = [task.next_batch() for _ in range(cfg.update_freq)]
        loss = trainer.train_step(samples)
        if rank == 0 and trainer.num_updates % cfg.log_interval == 0:
            print(f"update {trainer.num_updates} | loss {loss.item() / math.log(2):.3f} | wall {time.time() - start:.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
