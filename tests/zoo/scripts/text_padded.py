"""Text classifier on sentences of different lengths."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD = 0


class Sentences(Dataset):
    def __init__(self, count, low, high):
        rng = random.Random(1)
        self.rows = [[rng.randrange(1, 3000) for _ in range(rng.randint(low, high))] for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.tensor(self.rows[i]), len(self.rows[i]) % 3


def collate(rows, to_length=None):
    sequences, labels = zip(*rows)
    ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    if to_length:
        ids = F.pad(ids, (0, to_length - ids.shape[1]), value=PAD)
    return ids, torch.tensor(labels)


class Encoder(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.embed = nn.Embedding(3000, width, padding_idx=PAD)
        block = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, ids):
        mask = ids == PAD
        h = self.blocks(self.embed(ids), src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1)
        return self.head((h * keep).sum(1) / keep.sum(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--bucketed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    max_length = 96
    low, high = {1: (40, 80), 2: (30, 66), 3: (10, 38)}[args.level]
    to_length = None if args.fixed else max_length
    data = Sentences(2048, low, high)
    if args.bucketed:
        order = sorted(range(len(data)), key=lambda i: len(data.rows[i]))
        groups = [order[i : i + 8] for i in range(0, len(order), 8)]
        random.Random(2).shuffle(groups)
        loader = DataLoader(data, batch_sampler=groups, collate_fn=collate)
    else:
        loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=lambda rows: collate(rows, to_length))
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    step = 0
    while step < args.steps:
        for ids, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
