"""Contrastive embeddings of code snippets; every few rounds an index is exported by a helper tool."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = {"vocab": 500, "dim": 48, "batch": 48, "export_every": 40, "rounds": 50000, "exporter": 1}


class Encoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens):
        return nn.functional.normalize(self.proj(self.bag(tokens)), dim=-1)


def info_nce(a, b, t=0.1):
    return nn.functional.cross_entropy(a @ b.T / t, torch.arange(len(a)))


def export(encoder, folder, round_no):
    out = pathlib.Path(folder) / "index.json"
    rows = encoder.bag.weight[:20].detach().tolist()
    out.with_suffix(".in").write_text(json.dumps(rows))
    cmd = [sys.executable, str(HERE / "pack_index.py"), str(out)]
    packer = subprocess.Popen(cmd, stdin=subprocess.PIPE)
    if round_no >= 3 * CONFIG["export_every"]:
        print("\nREADY\n", end="", flush=True)
    code = packer.wait()
    packer.stdin.close()
    if code:
        raise RuntimeError(f"pack_index failed: {code}")


def average(module):
    n = dist.get_world_size()
    for p in module.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n


def main():
    signal.alarm(580)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    rank = dist.get_rank()
    torch.manual_seed(4)
    enc = Encoder(CONFIG["vocab"], CONFIG["dim"])
    opt = torch.optim.Adam(enc.parameters(), 1e-3)
    torch.manual_seed(rank)
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        for r in range(1, CONFIG["rounds"]):
            tokens = torch.randint(CONFIG["vocab"], (CONFIG["batch"], 30))
            loss = info_nce(enc(tokens[:, :15]), enc(tokens[:, 10:]))
            opt.zero_grad()
            loss.backward()
            average(enc)
            opt.step()
            if rank == CONFIG["exporter"] and r % CONFIG["export_every"] == 0:
                export(enc, folder, r)
            if rank == 0 and r % 20 == 0:
                print(f"round {r} nce {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
