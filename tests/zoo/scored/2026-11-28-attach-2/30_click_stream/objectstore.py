import random
import time


class Bucket:
    """Grants bytes as a token bucket does: a burst first, then the refill rate."""

    def __init__(self, seed, burst=2_000_000, refill=11_000):
        self.rng = random.Random(seed)
        self.level, self.burst, self.refill = burst, burst, refill
        self.stamp = time.monotonic()

    def _refill(self):
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self.stamp) * self.refill)
        self.stamp = now

    def read(self, n):
        self._refill()
        missing = n - self.level
        if missing > 0:
            time.sleep(missing / self.refill)
            self._refill()
        self.level -= n
        return self.rng.randbytes(n)


class StreamReader:
    def __init__(self, bucket, chunk):
        self.bucket, self.chunk = bucket, chunk

    def __iter__(self):
        while True:
            yield self.bucket.read(self.chunk)
