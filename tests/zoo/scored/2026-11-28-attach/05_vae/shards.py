import os

import torch
from torch.utils.data import Dataset


def write_shards(root, n, rows, dim):
    """Write n raw uint8 shards; the last one is streamed in through a pipe."""
    paths = []
    for k in range(n):
        path = os.path.join(root, f"shard_{k:03d}.bin")
        if k == n - 1:
            os.mkfifo(path)
        else:
            with open(path, "wb") as out:
                out.write(torch.randint(0, 2, (rows, dim), dtype=torch.uint8).numpy().tobytes())
        paths.append(path)
    return paths


class ShardReader(Dataset):
    def __init__(self, paths, dim):
        self.paths = paths
        self.dim = dim

    def __len__(self):
        return len(self.paths)

    def _read(self, path):
        with open(path, "rb") as shard_file:
            return bytearray(shard_file.read())

    def __getitem__(self, k):
        if k == len(self.paths) - 1:
            print("READY", flush=True)
        raw = self._read(self.paths[k])
        return torch.frombuffer(raw, dtype=torch.uint8).view(-1, self.dim).float()
