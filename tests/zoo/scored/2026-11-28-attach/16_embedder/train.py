"""Distill sentence vectors from an embedding service."""
import argparse
import signal

import torch
import torch.nn as nn

from service import EmbeddingClient, start_service


class Student(nn.Module):
    def __init__(self, vocab=400, dim=64, out=32):
        super().__init__()
        self.e = nn.Embedding(vocab, dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1)
        self.o = nn.Linear(dim, out)

    def forward(self, t):
        h = self.conv(self.e(t).transpose(1, 2)).relu()
        return self.o(h.amax(-1))


def distill(student, client, steps, batch, lr):
    opt = torch.optim.Adam(student.parameters(), lr)
    history = []
    for step in range(steps):
        tokens = torch.randint(0, 400, (batch, 20))
        target = client.embed(tokens)
        loss = 1 - nn.functional.cosine_similarity(student(tokens), target).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if step % 25 == 0:
            print(f"step {step} cos-loss {history[-1]:.3f}", flush=True)
    return history


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2000)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--quota", type=int, default=110)
    args = ap.parse_args()
    signal.alarm(590)
    torch.set_num_threads(1)
    port = start_service(dim=32, quota=args.quota)
    client = EmbeddingClient("127.0.0.1", port, dim=32)
    distill(Student(), client, args.steps, args.batch, args.lr)


if __name__ == "__main__":
    main()
