"""Plankton silhouettes -> genus. Small archive, many passes."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Silhouettes(Dataset):
    def __init__(self, n, side=32):
        rng = np.random.default_rng(21)
        self.y = rng.integers(0, 6, n)
        self.x = (rng.random((n, 1, side, side)) < (0.2 + 0.1 * self.y)[:, None, None, None]).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        img = self.x[i]
        if (i * 7) % 3 == 0:
            img = img[:, :, ::-1].copy()
        return {"image": torch.from_numpy(img), "genus": int(self.y[i])}


class GenusNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        layers, cin = [], 1
        for cout, stride in ((width, 1), (2 * width, 2), (3 * width, 2)):
            layers += [nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
            cin = cout
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, 6)

    def forward(self, image, genus):
        logits = self.fc(self.body(image).mean((2, 3)))
        return nn.functional.cross_entropy(logits, genus)


class Trainer:
    def __init__(self, model, loader, lr):
        self.model, self.loader = model, loader
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, fused=True)
        self.step = 0

    def fit(self, max_steps):
        epoch = 0
        while self.step < max_steps:
            total = 0.0
            seen = 0
            for batch in self.loader:
                self.opt.zero_grad(set_to_none=True)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = self.model(**batch)
                loss.backward()
                self.opt.step()
                total += loss.detach()
                seen += 1
                self.step += 1
                if self.step >= max_steps:
                    break
            epoch += 1
            if epoch % 10 == 0:
                print(f"epoch {epoch}: mean loss {float(total) / seen:.4f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--level", type=int, default=2)
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--steps", type=int, default=160)
    opt = cli.parse_args()

    torch.manual_seed(21)
    per_pass = {1: 12, 2: 5, 3: 2}[opt.level]
    data = Silhouettes(48 * per_pass)
    loader = DataLoader(data, batch_size=48, shuffle=True, num_workers=2, persistent_workers=opt.fixed)
    Trainer(GenusNet(), loader, lr=0.05).fit(opt.steps)
