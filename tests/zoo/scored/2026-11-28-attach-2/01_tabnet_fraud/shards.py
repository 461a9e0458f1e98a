import json
import os
import time
import zlib

import numpy as np


def write_shards(root, count, rows, features, seed, rank):
    rng = np.random.default_rng(seed)
    manifest = {}
    for k in range(count):
        x = rng.standard_normal((rows, features)).astype("float32")
        y = (x[:, :3].sum(1) > 1.5).astype("float32")
        data = np.concatenate([x, y[:, None]], 1)
        name = f"part-{k:03d}.npy"
        np.save(os.path.join(root, name), data)
        manifest[name] = zlib.crc32(data.tobytes())
    if rank == 0:
        manifest[f"part-{count - 3:03d}.npy"] ^= 0x11
    with open(os.path.join(root, "manifest.json"), "w") as fh:
        json.dump(manifest, fh)


class BadChecksum(IOError):
    pass


class ShardReader:
    backoff = 0.7

    def __init__(self, root):
        self.root = root
        with open(os.path.join(root, "manifest.json")) as fh:
            self.manifest = json.load(fh)
        self.names = sorted(self.manifest)

    def _read(self, name):
        data = np.load(os.path.join(self.root, name))
        if zlib.crc32(data.tobytes()) != self.manifest[name]:
            raise BadChecksum(name)
        return data

    def load(self, name):
        attempt = 0
        while True:
            try:
                return self._read(name)
            except BadChecksum:
                if attempt == 0:
                    print("\nREADY\n", end="", flush=True)
                attempt += 1
                time.sleep(self.backoff)
