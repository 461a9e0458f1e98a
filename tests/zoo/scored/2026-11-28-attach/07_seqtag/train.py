"""Sequence tagger with a CRF-like Viterbi decode for the training metric."""
import argparse
import time

import torch
import torch.nn as nn


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim // 2, bidirectional=True, batch_first=True)
        self.proj = nn.Linear(dim, tags)
        self.trans = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, tokens):
        return self.proj(self.lstm(self.emb(tokens))[0])


def viterbi(emissions, trans):
    """Best tag path of every sentence."""
    n, length, tags = emissions.shape
    paths = []
    for b in range(n):
        score = [emissions[b, 0, t].item() for t in range(tags)]
        back = []
        for i in range(1, length):
            nxt, ptr = [], []
            for t in range(tags):
                best, arg = -1e30, 0
                for s in range(tags):
                    cand = score[s] + trans[s, t].item() + emissions[b, i, t].item()
                    if cand > best:
                        best, arg = cand, s
                nxt.append(best)
                ptr.append(arg)
            score = nxt
            back.append(ptr)
        tag = max(range(tags), key=score.__getitem__)
        path = [tag]
        for ptr in reversed(back):
            tag = ptr[tag]
            path.append(tag)
        paths.append(path[::-1])
    return paths


def make_batch(vocab, tags, n, length):
    tokens = torch.randint(0, vocab, (n, length))
    return tokens, (tokens * 7 + 3) % tags


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--sentences", type=int, default=16)
    ap.add_argument("--length", type=int, default=40)
    ap.add_argument("--tags", type=int, default=15)
    ap.add_argument("--warm-steps", type=int, default=30)
    ap.add_argument("--seconds", type=float, default=500)
    a = ap.parse_args()
    torch.set_num_threads(1)
    model = Tagger(500, a.tags)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    began, step = time.time(), 0
    while time.time() - began < a.seconds:
        tokens, gold = make_batch(500, a.tags, a.sentences, a.length)
        em = model(tokens)
        loss = nn.functional.cross_entropy(em.flatten(0, 1), gold.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step > a.warm_steps:
            paths = viterbi(em.detach(), model.trans.detach())
            hit = (torch.tensor(paths) == gold).float().mean().item()
            print(f"step {step} loss {loss.item():.3f} acc {hit:.3f}", flush=True)
        if step == a.warm_steps + 3:
            print("READY", flush=True)


if __name__ == "__main__":
    main()
