"""MLP regression that keeps a resumable copy of its state on disk."""

import argparse
import os
import tempfile
import threading
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def write_state(state, path):
    with path.with_suffix(".tmp").open("wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    path.with_suffix(".tmp").replace(path)


def cloned(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: cloned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [cloned(v) for v in value]
    return value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    save_every = {1: 20, 2: 9, 3: 3}[args.level]
    x = torch.randn(8192, 512)
    y = x.square().mean(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    writer = None
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".state-") as folder:
        path = Path(folder, "last.pt")
        step = 0
        while step < args.steps:
            for a, b in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), b)
                loss.backward()
                optimizer.step()
                step += 1
                if step % save_every == 0:
                    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    if args.fixed:
                        if writer is not None:
                            writer.join()
                        writer = threading.Thread(target=write_state, args=(cloned(state), path))
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
