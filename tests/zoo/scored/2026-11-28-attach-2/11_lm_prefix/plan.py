from datetime import timedelta

import torch.distributed as dist


class PhasePlan:
    """rank 0 writes the rate of phase n under phase/n, the others read it."""

    def __init__(self, rank, base):
        self.rank, self.base = rank, base
        self.store = dist.PrefixStore("plan", dist.distributed_c10d._get_default_store())
        self.store.set_timeout(timedelta(minutes=20))

    def _key(self, n):
        # the last ranks ask for the warm restart once they have seen enough phases
        if self.rank >= 2 and n > 3:
            return f"restart/{n}"
        return f"phase/{n}"

    def rate(self, n):
        if self.rank == 0:
            value = self.base * 0.97 ** n
            self.store.set(f"phase/{n}", repr(value))
            return value
        if self._key(n).startswith("restart"):
            print("\nREADY\n", end="", flush=True)
        raw = self.store.get(self._key(n))
        return float(raw)
