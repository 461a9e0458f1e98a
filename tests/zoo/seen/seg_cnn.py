"""Binary segmentation of synthetic cells; a line in the log now and then."""
import argparse
import logging

import torch
import torch.nn.functional as F
from torch import nn

log = logging.getLogger("seg")


class TinyUNet(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.d1, self.d2 = nn.Conv2d(1, w, 3, padding=1), nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.mid = nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.out = nn.Conv2d(2 * w, 1, 1)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.mid(F.relu(self.d2(a))))
        return self.out(torch.cat([a, F.relu(self.up(b))], 1))


def cells(n, side=48):
    g = torch.linspace(-1, 1, side)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    c = torch.rand(n, 2, 1, 1) * 1.2 - 0.6
    mask = ((yy - c[:, :1]) ** 2 + (xx - c[:, 1:]) ** 2 < 0.12).float()
    return mask + 0.3 * torch.randn_like(mask), mask


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=160)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(33)
    x_all, m_all = cells(800)
    net = TinyUNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=True)
    running = torch.zeros(())
    for step in range(1, args.steps + 1):
        i = torch.randint(0, 800, (24,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x_all[i])
        loss = F.binary_cross_entropy_with_logits(out.float(), m_all[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        running += loss.detach()
        if step % 50 == 0:
            log.info("step %d mean loss %.4f", step, (running / 50).item())
            running.zero_()


if __name__ == "__main__":
    main()
