"""Convolutional classifier that reports its accuracy on the training batches."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).float().mean().item()


def top3(logits, labels):
    return (logits.topk(3, 1).indices == labels[:, None]).any(1).float().mean().item()


def confidence(logits, labels):
    return logits.softmax(1).gather(1, labels[:, None]).mean().item()


METRICS = (accuracy, top3, confidence)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=2)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    metrics = METRICS[: args.level]
    images = torch.randn(2048, 3, 32, 32)
    labels = torch.randint(0, 10, (2048,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sums = dict.fromkeys((m.__name__ for m in metrics), 0.0)
    step = 0
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            for metric in metrics:
                with torch.no_grad():
                    scores = logits.detach() if args.fixed else model(x)
                    sums[metric.__name__] += metric(scores, y)
            step += 1
            if step >= args.steps:
                break
    print({name: round(total / step, 3) for name, total in sums.items()})


if __name__ == "__main__":
    main()
