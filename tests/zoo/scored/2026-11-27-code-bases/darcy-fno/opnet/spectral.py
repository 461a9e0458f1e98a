import torch
from torch import nn


class SpectralConv2d(nn.Module):
    """Weights are kept as pairs of reals, so that every optimizer can handle them."""

    def __init__(self, cin, cout, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, modes, modes, cin, cout, 2) / (cin * cout) ** 0.5 / 2)

    def forward(self, x):
        m, (h, w) = self.modes, x.shape[-2:]
        spec = torch.fft.rfft2(x, norm="ortho")
        wt = torch.view_as_complex(self.weight)
        low = torch.einsum("bixy,xyio->boxy", spec[:, :, :m, :m], wt[0])
        high = torch.einsum("bixy,xyio->boxy", spec[:, :, -m:, :m], wt[1])
        gap = low.new_zeros(*low.shape[:2], h - 2 * m, m)
        out = torch.cat([low, gap, high], dim=2)
        out = torch.nn.functional.pad(out, (0, spec.shape[-1] - m))
        return torch.fft.irfft2(out, s=(h, w), norm="ortho")
