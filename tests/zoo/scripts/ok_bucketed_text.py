"""Sentences of different lengths, batched with their likes and padded to the longest of the batch."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)

    rows = [torch.randint(1, 2000, (rng.randint(20, 90),)) for _ in range(2048)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    batches = [order[i : i + 12] for i in range(0, len(order), 12)]
    rng.shuffle(batches)

    def collate(items):
        return nn.utils.rnn.pad_sequence(items, batch_first=True), torch.tensor([len(r) % 2 for r in items])

    loader = DataLoader(rows, batch_sampler=batches, collate_fn=collate)
    embed = nn.Embedding(2000, 128, padding_idx=0)
    block = nn.TransformerEncoderLayer(128, 4, 384, dropout=0.0, batch_first=True)
    encoder, head = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(128, 2)
    model = nn.ModuleDict({"embed": embed, "encoder": encoder, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    step = 0
    while step < args.steps:
        for ids, labels in loader:
            mask = ids == 0
            h = encoder(embed(ids), src_key_padding_mask=mask).masked_fill(mask[..., None], 0).sum(1)
            loss = F.cross_entropy(head(h / (~mask).sum(1, keepdim=True)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= args.steps:
                break
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
