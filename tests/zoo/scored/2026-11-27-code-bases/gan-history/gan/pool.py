import torch


class FakePool:
    """Earlier fakes, mixed into the critic's batches against forgetting."""

    def __init__(self, share, limit=0):
        self.share = share
        self.limit = limit
        self.images = None

    def mix(self, fakes):
        if self.images is None:
            self.images = fakes.detach().clone()
            return fakes
        n = int(self.share * len(fakes))
        old = self.images[torch.randint(0, len(self.images), (n,))]
        self.add(fakes[:n].detach())
        return torch.cat([old, fakes[n:]])

    def add(self, fakes):
        self.images = torch.cat([self.images, fakes])
        if self.limit and len(self.images) > self.limit:
            self.images = self.images[-self.limit:]
