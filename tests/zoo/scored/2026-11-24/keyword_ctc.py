"""Character CTC model on short utterances (log-mel features), two workers."""
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

hp = SimpleNamespace(
    n_mels=40, channels=96, hidden=128, vocab=29, n_utts=3840, batch_size=12,
    epochs=1, lr=6e-4, clip=5.0, seed=1337, report=25,
)


class ConvSubsample(nn.Module):
    def __init__(self, n_mels, ch):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(n_mels, ch, 5, stride=2, padding=2), nn.GELU(),
            nn.Conv1d(ch, ch, 5, stride=2, padding=2), nn.GELU(),
        )

    def forward(self, x):
        return self.net(x.transpose(1, 2)).transpose(1, 2)


class SeparableBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.norm = nn.LayerNorm(ch)
        self.up = nn.Linear(ch, 4 * ch)
        self.down = nn.Linear(4 * ch, ch)
        self.mix = nn.Conv1d(ch, ch, 9, padding=4)

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm(x))))


class AcousticModel(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.front = ConvSubsample(hp.n_mels, hp.channels)
        self.body = nn.Sequential(*[SeparableBlock(hp.channels) for _ in range(4)])
        self.head = nn.Linear(hp.channels, hp.vocab)

    def forward(self, feats):
        return self.head(self.body(self.front(feats))).log_softmax(-1)


def make_corpus(hp):
    """Utterances ordered from shortest to longest, like the manifest on disk."""
    g = torch.Generator().manual_seed(hp.seed)
    frames = (60 + 240 * torch.rand(hp.n_utts, generator=g).pow(1.3)).long().sort().values
    protos = torch.randn(hp.vocab, hp.n_mels, generator=g)
    corpus = []
    for n in frames.tolist():
        text = torch.randint(1, hp.vocab, (n // 14,), generator=g)
        where = torch.arange(n) * len(text) // n
        feats = protos[text[where]] + 0.7 * torch.randn(n, hp.n_mels, generator=g)
        corpus.append((feats, text))
    return corpus


def batches_for_rank(corpus, rank, world, hp):
    per_rank = len(corpus) // world
    local = corpus[rank * per_rank:(rank + 1) * per_rank]
    return [local[i:i + hp.batch_size] for i in range(0, len(local), hp.batch_size)]


def collate(items):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    in_len = torch.tensor([(len(f) + 3) // 4 for f, _ in items])
    out_len = torch.tensor([len(t) for _, t in items])
    return feats, torch.cat([t for _, t in items]), in_len, out_len


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(hp.seed)
    corpus = make_corpus(hp)
    batches = batches_for_rank(corpus, rank, world, hp)
    del corpus

    net = DDP(AcousticModel(hp))
    optimizer = torch.optim.AdamW(net.parameters(), lr=hp.lr, fused=True)
    t0, running, step = time.time(), torch.zeros(()), 0
    for epoch in range(hp.epochs):
        order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(hp.seed + epoch))
        for b in order.tolist():
            feats, text, in_len, out_len = collate(batches[b])
            logp = net(feats)
            loss = F.ctc_loss(logp.transpose(0, 1), text, in_len, out_len, zero_infinity=True)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), hp.clip, foreach=True)
            optimizer.step()
            running += loss.detach()
            step += 1
            if step % hp.report == 0:
                if rank == 0:
                    print(f"epoch {epoch} step {step} ctc {running.item() / hp.report:.3f} t {time.time() - t0:.1f}", flush=True)
                running.zero_()
    dist.barrier()
    if rank == 0:
        print("finished", step, "steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
