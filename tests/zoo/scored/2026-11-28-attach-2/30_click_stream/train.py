"""Next-click prediction from a (simulated) object store stream."""
import signal

import torch
import torch.nn as nn
import torch.nn.functional as F

from objectstore import Bucket, StreamReader


class NextClick(nn.Module):
    def __init__(self, items=256, d=24):
        super().__init__()
        self.e = nn.Embedding(items, d)
        self.conv = nn.Conv1d(d, 48, 5, padding=2)
        self.o = nn.Linear(48, items)

    def forward(self, s):
        h = F.relu(self.conv(self.e(s).transpose(1, 2)))
        return self.o(h.amax(2))


def decode(raw, width=32):
    t = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long().view(-1, width)
    return t[:, :-1], t[:, -1]


def main():
    signal.alarm(580)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = NextClick()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    reader = StreamReader(Bucket(seed=30), chunk=32 * 512)
    seen = 0
    for raw in reader:
        x, y = decode(raw)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += 1
        if seen == 123:
            print("READY", flush=True)
        if seen % 10 == 0:
            print(f"{seen} chunks, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
