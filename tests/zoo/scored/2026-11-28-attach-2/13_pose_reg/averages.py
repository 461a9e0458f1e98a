import threading
from collections import deque


class RunningAverages:
    """Medians of the last values."""

    def __init__(self, names, window=4000):
        self._values = {n: deque(maxlen=window) for n in names}
        self._guard = threading.Lock()
        self._cache = {}

    def add(self, **values):
        with self._guard:
            for name, v in values.items():
                self._values[name].append(v)
                ordered = sorted(self._values[name])
                self._cache[name] = ordered[len(ordered) // 2]

    def read(self):
        with self._guard:  # a consistent view
            return {n: round(v, 4) for n, v in self._cache.items()}
