import queue
import threading

import torch


class RecordFile:
    def __init__(self, n, seed, broken=None):
        self.n, self.broken = n, broken
        self.g = torch.Generator().manual_seed(seed)

    def read(self, i):
        if i == self.broken:
            print("READY", flush=True)
            raise ValueError(f"record {i}: bad checksum")
        x = torch.randn(2, 40, generator=self.g)
        return x, x[:, :5].flatten()


class Prefetcher:
    """Assembles batches in a thread, at most `depth` ahead."""

    _END = object()

    def __init__(self, records, batch, depth):
        self.records, self.batch = records, batch
        self.ready = queue.Queue(depth)
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        for start in range(0, self.records.n, self.batch):
            rows = [self.records.read(i) for i in range(start, start + self.batch)]
            xs, ys = zip(*rows)
            self.ready.put((torch.stack(xs), torch.stack(ys)))
        self.ready.put(self._END)

    def __iter__(self):
        return self

    def __next__(self):
        item = self.ready.get()
        if item is self._END:
            raise StopIteration
        return item
