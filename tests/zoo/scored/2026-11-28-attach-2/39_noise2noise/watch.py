import threading


class LayerWatch(threading.Thread):
    """Looks for jumps of one statistic and counts them."""

    def __init__(self, key, stats):
        super().__init__(name=f"watch-{key}", daemon=True)
        self.key, self.stats = key % 7, stats
        self.jumps, self.last = 0, None

    def run(self):
        while True:
            value = self.stats.get(self.key)
            if value is not None and self.last is not None:
                if abs(value - self.last) > 0.1 * abs(self.last):
                    self.jumps += 1
            self.last = value
