# ruff: noqa
"""Three shards of 200 MB, one after the other, in a function's locals. Compared: peak memory, memory at the end."""

import torch
from _result import one_step, result, rss_mb


def main():
    model = torch.nn.Linear(64, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for part in range(3):
        shard = torch.full((800_000, 64), part + 0.5)
        for i in range(5):
            x = shard[i * 64 : i * 64 + 64]
            loss = one_step(model, opt, x)
        del shard, x
    result(loss, model, end_mb=rss_mb())


main()
