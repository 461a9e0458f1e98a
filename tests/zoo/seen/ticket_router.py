"""Route support tickets to teams with a small encoder (dict batches)."""
import argparse
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader

PAD, VOCAB, TEAMS = 0, 3000, 12
MAX_LENGTH = 128


def build_tickets(n, typical, rng):
    out = []
    for _ in range(n):
        team = rng.randrange(TEAMS)
        ln = min(MAX_LENGTH, max(6, int(rng.gauss(typical, typical * 0.2))))
        ids = [rng.randrange(1 + team * 100, 1 + team * 100 + 1500) for _ in range(ln)]
        out.append({"input_ids": ids, "labels": team})
    return out


class PadToLength:
    def __init__(self, max_length=None):
        self.max_length = max_length

    def __call__(self, features):
        width = self.max_length or max(len(f["input_ids"]) for f in features)
        ids = torch.full((len(features), width), PAD)
        mask = torch.zeros(len(features), width, dtype=torch.bool)
        for i, f in enumerate(features):
            n = len(f["input_ids"])
            ids[i, :n] = torch.tensor(f["input_ids"])
            mask[i, :n] = True
        return {"input_ids": ids, "attention_mask": mask,
                "labels": torch.tensor([f["labels"] for f in features])}


class Router(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Embedding(MAX_LENGTH, d)
        layer = nn.TransformerEncoderLayer(d, 4, 3 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.cls = nn.Linear(d, TEAMS)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.tok(input_ids) + self.pos.weight[: input_ids.shape[1]]
        h = self.enc(h, src_key_padding_mask=~attention_mask)
        m = attention_mask.unsqueeze(-1)
        logits = self.cls((h * m).sum(1) / m.sum(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=110)
    args = ap.parse_args()
    torch.manual_seed(17)
    rng = random.Random(17)
    typical = {1: 102, 2: 86, 3: 44}[args.level]
    tickets = build_tickets(1200, typical, rng)
    if args.fixed:
        # neighbours of similar length share a batch; batches themselves are shuffled
        tickets.sort(key=lambda t: len(t["input_ids"]))
        groups = [list(range(i, i + 12)) for i in range(0, len(tickets), 12)]
        rng.shuffle(groups)
        loader = DataLoader(tickets, batch_sampler=groups, collate_fn=PadToLength())
    else:
        loader = DataLoader(tickets, batch_size=12, shuffle=True, drop_last=True,
                            collate_fn=PadToLength(MAX_LENGTH))
    model = Router()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    step = 0
    while step < args.steps:
        for batch in loader:
            out = model(**batch)
            out["loss"].backward()
            opt.step()
            opt.zero_grad()
            step += 1
            if step % 50 == 0:
                print({"step": step, "loss": round(out["loss"].item(), 4)})
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
