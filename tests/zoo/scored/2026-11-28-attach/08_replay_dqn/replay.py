import random
import threading

import torch


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items, self.priority = [], []
        self.items_lock = threading.Lock()
        self.prio_lock = threading.Lock()

    def add(self, transition):
        with self.items_lock:
            self.items.append(transition)
            if len(self.items) > self.capacity:
                self.items.pop(0)
            value = self._initial_priority(transition)
            with self.prio_lock:  # keep both lists aligned
                self.priority.append(value)
                del self.priority[:-self.capacity]

    def _initial_priority(self, transition):
        s, _, r, s2 = transition
        w = torch.outer(s, s2)
        for _ in range(150):
            w = torch.tanh(w @ w.T)
        return float(w.abs().mean()) + abs(r)

    def sample(self, n):
        with self.items_lock:
            size = len(self.items)
            idx = [random.randrange(size) for _ in range(n)]
            rows = [self.items[i] for i in idx]
        s, a, r, s2 = zip(*rows)
        return idx, (torch.stack(s), torch.tensor(a), torch.tensor(r), torch.stack(s2))

    def reprioritize(self, idx, td):
        with self.prio_lock:
            ranked = sorted(zip(td.tolist(), idx), reverse=True)
            scale = self.normalizer()
            for value, i in ranked:
                if i < len(self.priority):
                    self.priority[i] = value / scale

    def normalizer(self):
        total = 1e-6
        with self.items_lock:  # rows must not move
            for row in self.items:
                total += abs(row[2])
        return total
