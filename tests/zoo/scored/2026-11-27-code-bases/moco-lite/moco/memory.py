from collections import deque

import torch
import torch.nn.functional as F

QUEUES = {}


def register(name):
    def wrap(cls):
        QUEUES[name] = cls
        return cls
    return wrap


@register("fifo")
class FifoQueue:
    """First in, first out store of the last ``size`` keys."""

    def __init__(self, size, dim):
        start = F.normalize(torch.randn(size, dim), dim=1)
        self.items = deque(start, maxlen=size)

    def push(self, keys):
        self.items.extend(keys.detach())

    def negatives(self):
        return torch.stack(list(self.items))


@register("ring")
class RingQueue:
    """The same store as one tensor with a write position."""

    def __init__(self, size, dim):
        self.table = F.normalize(torch.randn(size, dim), dim=1)
        self.pos = 0

    def push(self, keys):
        n = keys.shape[0]
        end = self.pos + n
        if end <= len(self.table):
            self.table[self.pos:end] = keys
        else:
            cut = len(self.table) - self.pos
            self.table[self.pos:] = keys[:cut]
            self.table[:n - cut] = keys[cut:]
        self.pos = end % len(self.table)

    def negatives(self):
        return self.table


def build_queue(cfg):
    return QUEUES[cfg.queue_kind](cfg.queue_size, cfg.dim)
