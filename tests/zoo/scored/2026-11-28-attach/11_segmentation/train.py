"""U-Net-ish segmentation with a big memory bank that is part of the checkpoint."""
import argparse
import os
import shutil
import time

import torch
import torch.nn as nn


class SmallUNet(nn.Module):
    def __init__(self, ch=16, classes=5):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, ch, 3, 2, 1), nn.ReLU(), nn.Conv2d(ch, ch, 3, 1, 1))
        self.up = nn.ConvTranspose2d(ch, ch, 2, 2)
        self.head = nn.Conv2d(ch, classes, 1)

    def forward(self, x):
        return self.head(torch.relu(self.up(torch.relu(self.down(x)))))


class Checkpointer:
    def __init__(self, folder, every):
        self.path = os.path.join(folder, "last.pt")
        self.every = every

    def maybe_save(self, step, net, opt, bank):
        if step % self.every:
            return False
        if step == 60:
            print("READY", flush=True)
        state = {"step": step, "net": net.state_dict(), "opt": opt.state_dict(), "bank": bank}
        tmp = self.path + ".tmp"
        torch.save(state, tmp)
        with open(tmp, "rb+") as fh:
            os.fsync(fh.fileno())
        os.replace(tmp, self.path)
        return True


def synth(batch, size):
    x = torch.rand(batch, 3, size, size)
    return x, (x.mean(1) * 5).long().clamp_(0, 4)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bank-mb", type=int, default=1024)
    ap.add_argument("--seconds", type=float, default=420)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--save-every", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(1)
    net = SmallUNet()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    bank = torch.zeros(args.bank_mb, 1024, 256)
    bank[:, 0].normal_()
    t0, step = time.time(), 0
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ckpt")
    os.makedirs(folder, exist_ok=True)
    ckpt = Checkpointer(folder, args.save_every)
    while time.time() - t0 < args.seconds:
        x, y = synth(args.batch, 48)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        bank[step % args.bank_mb, 1, :64] = x.flatten()[:64]
        step += 1
        if step >= 60 and ckpt.maybe_save(step, net, opt, bank):
            print(f"step {step} saved, loss {loss.item():.3f}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
