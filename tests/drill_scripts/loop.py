"""A small training in the style of public scripts, whose ways to save and to resume are options.

Sixty steps on the CPU; a checkpoint is large enough to be hit while it is written.
"""

import argparse
import os
import signal
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--every", type=int, default=10, help="steps between two saves; 0: none")
parser.add_argument("--out", default="out")
parser.add_argument("--in-place", action="store_true", help="write over the checkpoint instead of renaming")
parser.add_argument("--no-load", action="store_true", help="never read a checkpoint")
parser.add_argument("--no-optimizer", action="store_true", help="leave the optimizer out of the checkpoint")
parser.add_argument("--restart-data", action="store_true", help="begin the data anew when resuming")
parser.add_argument("--handle", default="", help="signals after which it saves and ends, such as TERM,USR1")
parser.add_argument("--handler-s", type=float, default=0.0, help="seconds that ending takes beside the save")
parser.add_argument("--steps", type=int, default=60)
options = parser.parse_args()

rank = int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
train_model = model
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    train_model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
features = torch.randn(512, 32)
targets = features[:, :4].sum(1, keepdim=True)
padding = torch.zeros(12_000_000)
path = os.path.join(options.out, "ckpt.pt")
os.makedirs(options.out, exist_ok=True)
asked = []
for name in filter(None, options.handle.split(",")):
    signal.signal(getattr(signal, f"SIG{name}"), lambda number, frame: asked.append(number))


def save(step):
    content = {"model": model.state_dict(), "step": step, "padding": padding}
    if not options.no_optimizer:
        content["optimizer"] = optimizer.state_dict()
    if options.in_place:
        torch.save(content, path)
    else:
        torch.save(content, path + ".tmp")
        os.replace(path + ".tmp", path)


def batches(skip):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(skip):
        torch.randint(0, 512, (16,), generator=generator)
    while True:
        index = torch.randint(0, 512, (16,), generator=generator)
        yield features[index], targets[index]


begin = 0
if os.path.exists(path) and not options.no_load:
    content = torch.load(path)
    model.load_state_dict(content["model"])
    if not options.no_optimizer:
        optimizer.load_state_dict(content["optimizer"])
    begin = content["step"]
data = batches(0 if options.restart_data else begin)
for step in range(begin, options.steps):
    x, y = next(data)
    loss = torch.nn.functional.mse_loss(train_model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    done = step + 1
    if done % 15 == 0:
        model.eval()
        with torch.no_grad():
            for at in range(0, 512, 64):
                model(features[at : at + 64])
                time.sleep(0.03)
        model.train()
    if asked:
        time.sleep(options.handler_s)
        save(done)
        sys.exit(75)
    if rank == 0 and options.every and done % options.every == 0:
        save(done)
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
