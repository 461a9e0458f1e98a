"""OUT STEPS BLOCK CLOCK: a small training, timed in blocks of steps -> JSON, for pairs of processes.

``CLOCK`` is a function of ``time`` in ns; ``block_ns`` is the median of a step by it. Nothing of hotloop is imported.
"""

import json
import resource
import sys
import time

import torch


def main(out: str, steps: int, block: int, clock: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
    loss_of, now_ns = torch.nn.CrossEntropyLoss(), getattr(time, clock)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

    train(1000)
    blocks_ns = []
    before, wall_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for _ in range(steps // block):
        start_ns = now_ns()
        train(block)
        blocks_ns.append((now_ns() - start_ns) / block)
    wall_s, after = time.perf_counter() - wall_s, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = {"process_cpu_s": cpu_s, "wall_s": wall_s, "block_ns": sorted(blocks_ns)[len(blocks_ns) // 2]}
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
