"""Distil a frozen convolutional teacher into a smaller student."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


def convnet(w, classes=10):
    return nn.Sequential(
        nn.Conv2d(1, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(),
        nn.Conv2d(w, 2 * w, 3, stride=2, padding=1), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.Conv2d(2 * w, 2 * w, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * w, classes))


class Distiller:
    def __init__(self, teacher, student, temperature=3.0, mix=0.7):
        self.teacher = teacher.eval().requires_grad_(False)
        self.student = student
        self.t, self.mix = temperature, mix

    def loss(self, x, y):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x).float() / self.t, -1)
        logits = self.student(x).float()
        kd = F.kl_div(F.log_softmax(logits / self.t, -1), soft, reduction="batchmean") * self.t ** 2
        return self.mix * kd + (1 - self.mix) * F.cross_entropy(logits, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=140)
    args = ap.parse_args()
    torch.manual_seed(10)
    images, labels = torch.rand(4000, 1, 28, 28), torch.randint(0, 10, (4000,))
    d = Distiller(convnet(24), convnet(12))
    opt = torch.optim.AdamW(d.student.parameters(), lr=1e-3, fused=True)
    for step in range(args.steps):
        # each batch sees new crops, so teacher targets cannot be stored
        i = torch.randint(0, 4000, (96,))
        dx, dy = torch.randint(-2, 3, (2,)).tolist()
        x = images[i].roll((dx, dy), (2, 3))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = d.loss(x, labels[i])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 70 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
