"""Predict the outcome of a chess position (win / draw / loss)."""
import argparse

import torch
from torch import nn


class PositionNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.piece = nn.Embedding(13, d)
        self.square = nn.Parameter(torch.randn(64, d) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True) for _ in range(2))
        self.out = nn.Linear(d, 3)

    def forward(self, board):
        h = self.piece(board) + self.square
        for l in self.layers:
            h = l(h)
        return self.out(h.mean(1))


def accuracy(model, board, result):
    with torch.no_grad():
        return (model(board).argmax(-1) == result).float().mean().item()


def decisive_rate(model, board):
    with torch.no_grad():
        return (model(board).argmax(-1) != 1).float().mean().item()


def confidence(model, board):
    with torch.no_grad():
        return model(board).softmax(-1).amax(-1).mean().item()


def entropy(model, board):
    with torch.no_grad():
        lp = model(board).log_softmax(-1)
    return -(lp.exp() * lp).sum(-1).mean().item()


def from_logits(logits, result):
    lp = logits.detach().log_softmax(-1)
    top = lp.argmax(-1)
    return {"acc": (top == result).float().mean(), "decisive": (top != 1).float().mean(),
            "conf": lp.exp().amax(-1).mean(), "ent": -(lp.exp() * lp).sum(-1).mean()}


def main(args):
    torch.manual_seed(41)
    boards = torch.randint(0, 13, (3000, 64))
    results = torch.randint(0, 3, (3000,))
    model = PositionNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ce = nn.CrossEntropyLoss()
    running = {}
    for step in range(args.steps):
        j = torch.randint(0, 3000, (16,))
        board, result = boards[j], results[j]
        logits = model(board)
        loss = ce(logits, result)
        opt.zero_grad()
        loss.backward()
        opt.step()

        if args.fixed:
            m = from_logits(logits, result)
        elif args.level == 1:
            m = {"acc": accuracy(model, board, result)} if step % 2 == 0 else {}
        elif args.level == 2:
            m = {"acc": accuracy(model, board, result)}
        else:
            m = {"acc": accuracy(model, board, result), "decisive": decisive_rate(model, board),
                 "conf": confidence(model, board), "ent": entropy(model, board)}
        for k, v in m.items():
            running[k] = 0.95 * running.get(k, v) + 0.05 * v
        if (step + 1) % 50 == 0:
            print(step + 1, {k: round(float(v), 3) for k, v in running.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=140)
    main(parser.parse_args())
