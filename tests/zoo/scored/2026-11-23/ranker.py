"""Click ranking: bag-of-items encoder + wide MLP, bfloat16 autocast."""
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

config = dict(
    items=60000, item_dim=32, history=20, users=30000, dense=64,
    hidden=(2048, 2048, 1024), batch_size=96, steps=200,
    lr=0.02, momentum=0.9, clip=5.0, amp="bfloat16", seed=3, threads=2,
)


class Ranker(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.items = nn.EmbeddingBag(c["items"], c["item_dim"], mode="mean", sparse=True)
        sizes = [2 * c["item_dim"] + c["dense"], *c["hidden"]]
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, history, target, dense):
        x = torch.cat([self.items(history), self.items(target.unsqueeze(1)), dense], 1)
        return self.tower(x).squeeze(1)


def make_log(c):
    g = torch.Generator().manual_seed(c["seed"])
    history = torch.randint(0, c["items"], (c["users"], c["history"]), generator=g)
    target = torch.randint(0, c["items"], (c["users"],), generator=g)
    dense = torch.randn(c["users"], c["dense"], generator=g)
    click = ((target % 7 < 3).float() + dense[:, 0] > 0.5).float()
    return history, target, dense, click


def main(c):
    torch.manual_seed(c["seed"])
    torch.set_num_threads(c["threads"])
    history, target, dense, click = make_log(c)
    model = Ranker(c)
    tower = list(model.tower.parameters())
    opt = torch.optim.SGD(tower, lr=c["lr"], momentum=c["momentum"], fused=True)
    opt_items = torch.optim.SGD(model.items.parameters(), lr=c["lr"] * 10)
    scaler = torch.amp.GradScaler("cpu")
    dtype = getattr(torch, c["amp"])
    start = time.time()
    running = torch.zeros(())
    for step in range(1, c["steps"] + 1):
        idx = torch.randint(0, c["users"], (c["batch_size"],))
        with torch.autocast("cpu", dtype=dtype):
            logits = model(history[idx], target[idx], dense[idx])
        loss = F.binary_cross_entropy_with_logits(logits.float(), click[idx])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        scaler.unscale_(opt_items)
        nn.utils.clip_grad_norm_(tower, c["clip"])
        scaler.step(opt)
        scaler.step(opt_items)
        scaler.update()
        opt.zero_grad()
        opt_items.zero_grad()
        running += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {running.item() / 100:.4f} {time.time() - start:.1f}s", flush=True)
            running.zero_()


if __name__ == "__main__":
    main(config)
