import torch


class SpecMask:
    """One time mask and one band mask per clip."""

    def __init__(self, frames, bands):
        self.frames, self.bands = frames, bands

    def __call__(self, x):
        n, b, t = x.shape
        at = torch.randint(t - self.frames, (n, 1))
        lo = torch.randint(b - self.bands, (n, 1))
        steps, rows = torch.arange(t), torch.arange(b)
        time_mask = (steps >= at) & (steps < at + self.frames)
        band_mask = (rows >= lo) & (rows < lo + self.bands)
        return x.masked_fill(time_mask[:, None, :] | band_mask[:, :, None], 0.0)
