"""Intent classification; ragged token lists padded in the collate function."""
import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def utterances(n):
    rng = random.Random(30)
    out = [(torch.tensor([rng.randrange(1, 900) for _ in range(rng.randint(28, 32))]), rng.randrange(9))
           for _ in range(n)]
    return out


def collate(items):
    return pad_sequence([t for t, _ in items], batch_first=True), torch.tensor([y for _, y in items])


class Intent(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(900, d, padding_idx=0)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, 9)

    def forward(self, ids):
        pad = ids == 0
        h = self.enc(self.emb(ids), src_key_padding_mask=pad)
        return self.out(h.masked_fill(pad.unsqueeze(-1), 0.0).sum(1) / (~pad).sum(1, keepdim=True))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=130)
    args = ap.parse_args()
    torch.manual_seed(30)
    loader = DataLoader(utterances(2400), batch_size=48, shuffle=True, collate_fn=collate, drop_last=True)
    net = Intent()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4, fused=True)
    k = 0
    while k < args.steps:
        for ids, y in loader:
            loss = nn.functional.cross_entropy(net(ids), y)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            k += 1
            if k == args.steps:
                break
    print("final", loss.item())
