"""Keyword spotting on variable-length utterances with torch.compile."""
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "data": {"utterances": 1536, "mels": 40, "min_frames": 60, "max_frames": 124, "bucket": 8, "classes": 12},
    "model": {"dim": 96, "layers": 2, "heads": 4},
    "train": {"batch_size": 32, "epochs": 3, "lr": 5e-4, "seed": 21, "threads": 2},
    "compile": {"backend": "aot_eager", "dynamic": True, "recompile_limit": 64},
}


def make_corpus(c, seed):
    g = torch.Generator().manual_seed(seed)
    steps = (c["max_frames"] - c["min_frames"]) // c["bucket"]
    frames = c["min_frames"] + c["bucket"] * torch.randint(0, steps + 1, (c["utterances"],), generator=g)
    labels = torch.randint(0, c["classes"], (c["utterances"],), generator=g)
    protos = torch.randn(c["classes"], c["mels"], generator=g)
    feats = [protos[y] + torch.randn(n, c["mels"], generator=g) for n, y in zip(frames.tolist(), labels.tolist())]
    return feats, labels


def length_buckets(feats, batch_size, rng):
    by_len = {}
    for i, f in enumerate(feats):
        by_len.setdefault(len(f), []).append(i)
    batches = []
    for idx in by_len.values():
        rng.shuffle(idx)
        batches += [idx[s:s + batch_size] for s in range(0, len(idx) - batch_size + 1, batch_size)]
    rng.shuffle(batches)
    return batches


class Spotter(nn.Module):
    def __init__(self, mels, classes, dim, layers, heads):
        super().__init__()
        self.heads = heads
        self.conv = nn.Conv1d(mels, dim, 3, padding=1)
        self.norm1 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.proj = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(layers))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = F.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        b, t, d = x.shape
        for n1, qkv, proj, n2, mlp in zip(self.norm1, self.qkv, self.proj, self.norm2, self.mlp):
            q, k, v = qkv(n1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v)
            x = x + proj(a.transpose(1, 2).reshape(b, t, d))
            x = x + mlp(n2(x))
        return self.head(x.mean(1))


def main():
    d, m, t, k = CFG["data"], CFG["model"], CFG["train"], CFG["compile"]
    torch.manual_seed(t["seed"])
    torch.set_num_threads(t["threads"])
    torch._dynamo.config.recompile_limit = k["recompile_limit"]
    rng = random.Random(t["seed"])
    feats, labels = make_corpus(d, t["seed"])
    model = Spotter(d["mels"], d["classes"], **m)
    opt = torch.optim.AdamW(model.parameters(), lr=t["lr"], fused=True)
    step_fn = torch.compile(model, backend=k["backend"], dynamic=k["dynamic"])
    start = time.time()
    step = 0
    for epoch in range(t["epochs"]):
        running = torch.zeros(())
        batches = length_buckets(feats, t["batch_size"], rng)
        for idx in batches:
            x = torch.stack([feats[i] for i in idx])
            loss = F.cross_entropy(step_fn(x), labels[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            running += loss.detach()
            step += 1
        print(f"epoch {epoch} steps {step} loss {running.item() / len(batches):.3f} {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
