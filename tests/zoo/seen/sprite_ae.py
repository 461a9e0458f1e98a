"""Denoising autoencoder on game sprites; writes sample sheets for the dashboard."""
import argparse
import pathlib
import struct
import tempfile
import zlib

import torch
import torch.nn as nn


class SpriteAE(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU(),
                                 nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.ReLU())
        self.dec = nn.Sequential(nn.ConvTranspose2d(2 * c, c, 4, 2, 1), nn.ReLU(),
                                 nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Sigmoid())

    def forward(self, x):
        return self.dec(self.enc(x))


def write_png(path, rgb):
    """Minimal PNG writer; rgb is a uint8 tensor H x W x 3."""
    h, w, _ = rgb.shape
    raw = b"".join(b"\x00" + rgb[r].numpy().tobytes() for r in range(h))

    def chunk(tag, body):
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(raw, 6)) + chunk(b"IEND", b""))


class Dashboard:
    def __init__(self, root, every, rows):
        self.root, self.every, self.rows = pathlib.Path(root), every, rows

    def after_step(self, step, clean, noisy, recon, loss):
        if step % self.every:
            return
        n = self.rows * 4
        tri = torch.cat([clean[:n], noisy[:n].clamp(0, 1), recon.detach()[:n].float()], 3)
        sheet = tri.view(self.rows, 4, 3, 32, 96).permute(0, 3, 1, 4, 2).reshape(self.rows * 32, 4 * 96, 3)
        write_png(self.root / "latest.png", (sheet * 255).to(torch.uint8).contiguous())
        print(f"step {step}: mse {loss.item():.5f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--level", type=int, default=2)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--steps", type=int, default=150)
    args = ap.parse_args()
    torch.manual_seed(4)
    rows = {1: 2, 2: 5, 3: 16}[args.level]
    sprites = torch.rand(640, 3, 8, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    model = SpriteAE()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    with tempfile.TemporaryDirectory() as d:
        board = Dashboard(d, 100 if args.fixed else 1, rows)
        for step in range(1, args.steps + 1):
            clean = sprites[torch.randint(0, 640, (64,))]
            noisy = clean + 0.2 * torch.randn_like(clean)
            with torch.autocast("cpu", torch.bfloat16):
                recon = model(noisy)
            loss = nn.functional.mse_loss(recon.float(), clean)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            board.after_step(step, clean, noisy, recon, loss)


if __name__ == "__main__":
    main()
