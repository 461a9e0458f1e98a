"""A language model under FSDP2 on two ranks with 3 and 21 rows a step; --mended: 12 each."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(96, 4, 192, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(300, 96)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(96, 300)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mended", action="store_true")
    rows = (12, 12) if parser.parse_args().mended else (3, 21)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Words()
    for layer in model.body.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 300, (rows[dist.get_rank()], 32))
    for _ in range(90):
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
