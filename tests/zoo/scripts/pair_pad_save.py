"""Sentence classifier that saves a resumable state to disk."""

import argparse
import os
import random
import tempfile
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class Encoder(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.embed = nn.Embedding(6000, width, padding_idx=0)
        block = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 4)

    def forward(self, ids):
        mask = ids == 0
        h = self.blocks(self.embed(ids), src_key_padding_mask=mask)
        keep = (~mask).unsqueeze(-1)
        return self.head((h * keep).sum(1) / keep.sum(1))


def write_state(state, path):
    with path.open("wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())


def copy_of(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: copy_of(v) for k, v in value.items()}
    return value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)

    longest = {1: 50, 2: 40, 3: 24}[args.level]
    save_every = {1: 10, 2: 5, 3: 3}[args.level]
    rows = [torch.randint(1, 6000, (rng.randint(longest // 2, longest),)) for _ in range(2048)]

    def collate(items):
        ids = nn.utils.rnn.pad_sequence(items, batch_first=True)
        if not args.fixed:
            ids = F.pad(ids, (0, 64 - ids.shape[1]))
        return ids, torch.tensor([len(r) % 4 for r in items])

    loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    writer = None
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".state-") as folder:
        step = 0
        while step < args.steps:
            for ids, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(ids), labels)
                loss.backward()
                optimizer.step()
                step += 1
                if step % save_every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    path = Path(folder, "last.pt")
                    if args.fixed:
                        if writer is not None:
                            writer.join()
                        writer = threading.Thread(target=write_state, args=(copy_of(state), path))
                        writer.start()
                    else:
                        write_state(state, path)
                if step >= args.steps:
                    break
        if writer is not None:
            writer.join()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
