"""Knowledge distillation with accelerate: a wide CNN teaches a narrow one."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def textures(n, classes, size, generator):
    """Oriented gratings, class = orientation, random phase and contrast."""
    labels = torch.randint(0, classes, (n,), generator=generator)
    axis = torch.linspace(-3.14, 3.14, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    theta = labels.float() * 3.1416 / classes
    phase = torch.rand(n, generator=generator) * 6.28
    wave = torch.sin(3 * (xx * theta.cos()[:, None, None] + yy * theta.sin()[:, None, None])
                     + phase[:, None, None])
    contrast = torch.rand(n, 1, 1, generator=generator) + 0.3
    img = (contrast * wave)[:, None].expand(-1, 3, -1, -1)
    img = img + 0.7 * torch.randn(n, 3, size, size, generator=generator)
    return img.contiguous(), labels


def conv_bn(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False),
                         nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def make_net(width, classes):
    return nn.Sequential(
        conv_bn(3, width), conv_bn(width, width, 2), conv_bn(width, 2 * width),
        conv_bn(2 * width, 2 * width, 2), conv_bn(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def distillation_loss(student_logits, teacher_logits, labels, T, alpha):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1),
                    F.softmax(teacher_logits / T, dim=1), reduction="batchmean") * T * T
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard, soft, hard


def pretrain_teacher(teacher, images, labels, steps, batch):
    opt = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9)
    for i in range(steps):
        rows = torch.randint(0, len(images), (batch,))
        loss = F.cross_entropy(teacher(images[rows]), labels[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher loss {loss.item():.4f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--n", type=int, default=2560)
    ap.add_argument("--size", type=int, default=32)
    ap.add_argument("--classes", type=int, default=8)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--temperature", type=float, default=4.0)
    ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()

    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    images, labels = textures(args.n, args.classes, args.size, gen)
    teacher, student = make_net(24, args.classes), make_net(16, args.classes)
    pretrain_teacher(teacher, images, labels, steps=6, batch=32)
    teacher.eval().requires_grad_(False)

    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size,
                        shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3, fused=True)
    student, optimizer, loader = accelerator.prepare(student, optimizer, loader)

    for epoch in range(args.epochs):
        student.train()
        totals = torch.zeros(3)
        agree = hits = seen = 0
        for x, y in loader:
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            loss, soft, hard = distillation_loss(student_logits, teacher_logits, y,
                                                 args.temperature, args.alpha)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            totals += torch.stack([loss.detach(), soft.detach(), hard.detach()])
            with torch.no_grad():
                prediction = student_logits.argmax(1)
                agree += (prediction == teacher_logits.argmax(1)).sum().item()
                hits += (prediction == y).sum().item()
            seen += len(y)
        mean = totals / len(loader)
        accelerator.print(f"epoch {epoch} loss {mean[0]:.4f} soft {mean[1]:.4f} hard {mean[2]:.4f} "
                          f"agree {agree / seen:.3f} acc {hits / seen:.3f}")


if __name__ == "__main__":
    main()
