import torch


class EnsembleScore:
    """CRPS of an ensemble forecast over many start dates."""

    def __init__(self, members, lead, starts):
        self.members, self.lead, self.starts = members, lead, starts

    @torch.no_grad()
    def __call__(self, net, g):
        total = 0.0
        for _ in range(self.starts):
            truth = torch.randn(1, 4, 32, 48, generator=g)
            ens = truth + 0.05 * torch.randn(self.members, 4, 32, 48, generator=g)
            for _ in range(self.lead):
                ens = net(ens)
                truth = truth.roll(1, -1)
            total += self.crps(ens, truth)
        return total / self.starts

    def crps(self, ens, truth):
        near = (ens - truth).abs().mean()
        spread = (ens[:, None] - ens[None]).abs().mean()
        return (near - 0.5 * spread).item()
