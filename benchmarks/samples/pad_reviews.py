"""A transformer encoder on reviews of all lengths; each batch is padded to its longest."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset):
    def __init__(self, count):
        draw = random.Random(0)
        self.labels = [draw.randrange(2) for _ in range(count)]
        self.tokens = []
        for label in self.labels:
            length = min(160, 6 + int(draw.lognormvariate(3.2, 0.8)))
            self.tokens.append([draw.randrange(1, 400) * 2 + (draw.random() < 0.6) * label for _ in range(length)])

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return torch.tensor(self.tokens[index]), self.labels[index]


def collate(samples):
    tokens, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(802, 64, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(64, 2)

    def forward(self, tokens):
        hidden, padding = self.embed(tokens), tokens == 0
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=padding)
        return self.head(hidden.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Reviews(args.samples), batch_size=16, shuffle=True, drop_last=True, collate_fn=collate)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(args.epochs):
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
