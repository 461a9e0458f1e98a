"""Masked language model pretraining on a synthetic Markov corpus (BERT style, tiny)."""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, CLS, SEP, MASK = 0, 1, 2, 3
N_SPECIAL = 4


def markov_corpus(n_sentences, seq_len, vocab_size, generator):
    succ = torch.randint(N_SPECIAL, vocab_size, (vocab_size, 4), generator=generator)
    tokens = torch.empty(n_sentences, seq_len, dtype=torch.long)
    state = torch.randint(N_SPECIAL, vocab_size, (n_sentences,), generator=generator)
    for i in range(seq_len):
        tokens[:, i] = state
        pick = torch.randint(0, 4, (n_sentences,), generator=generator)
        state = succ[state, pick]
    tokens[:, 0] = CLS
    tokens[:, -1] = SEP
    return tokens


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class MaskedLM(nn.Module):
    def __init__(self, vocab, seq_len, dim, depth, heads):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(seq_len, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.out(self.norm(x))


def mask_tokens(batch, vocab_size, prob):
    inputs, labels = [], []
    for row in batch.tolist():
        new_row, lab_row = [], []
        for token in row:
            if token >= N_SPECIAL and random.random() < prob:
                lab_row.append(token)
                r = random.random()
                if r < 0.8:
                    new_row.append(MASK)
                elif r < 0.9:
                    new_row.append(random.randrange(N_SPECIAL, vocab_size))
                else:
                    new_row.append(token)
            else:
                lab_row.append(-100)
                new_row.append(token)
        inputs.append(torch.tensor(new_row))
        labels.append(torch.tensor(lab_row))
    return torch.stack(inputs), torch.stack(labels)


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=800)
    p.add_argument("--seq-len", type=int, default=128)
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--steps", type=int, default=170)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--mlm-prob", type=float, default=0.15)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = get_args()
    random.seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    corpus = markov_corpus(6000, args.seq_len, args.vocab, g)
    model = MaskedLM(args.vocab, args.seq_len, args.dim, args.depth, args.heads)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    warmup = 20
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warmup))

    avg = None
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(corpus), (args.batch_size,), generator=g)
        inputs, labels = mask_tokens(corpus[rows], args.vocab, args.mlm_prob)
        logits = model(inputs)
        picked = labels != -100
        loss = F.cross_entropy(logits[picked], labels[picked])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if step % 25 == 0:
            print(f"step {step:4d} | mlm loss {avg:.4f}")


if __name__ == "__main__":
    main()
