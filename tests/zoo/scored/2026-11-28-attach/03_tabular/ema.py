import contextlib
import threading

import torch


class SharedEMA:
    """Exponential moving average that other threads may read."""

    def __init__(self, net, decay):
        self.decay = decay
        self.lock = threading.Lock()
        self.shadow = {k: v.detach().clone() for k, v in net.state_dict().items()}
        self.updates = 0

    @torch.no_grad()
    def update(self, net):
        with self.lock:
            for k, v in net.state_dict().items():
                self.shadow[k].lerp_(v, 1 - self.decay)
            self.updates += 1

    def snapshot(self):
        self.lock.acquire()
        try:
            return {k: v.clone() for k, v in self.shadow.items()}
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def applied_to(self, net):
        saved = {k: v.clone() for k, v in net.state_dict().items()}
        net.load_state_dict(self.snapshot())
        yield net
        net.load_state_dict(saved)

    def restart(self, net):
        with self.lock:
            old = self.snapshot()
            self.shadow = {k: v.detach().clone() for k, v in net.state_dict().items()}
            self.updates = 0
        return old
