# ruff: noqa
"""The script clears os.environ in mid-training, then sets variables that Python and torch read, moves to a folder that it
removes, and changes its umask and priority. Compared: exit code, what children see."""

import os, subprocess, sys, tempfile, torch
from torch.utils.data import DataLoader
from _result import fit, net, one_step, result, settle, sgd

model = net()
opt = sgd(model)
fit(model, opt, 20)
os.environ.clear()
folder = tempfile.mkdtemp(dir="/tmp")
os.chdir(folder)
os.rmdir(folder)
os.umask(0o777)
os.nice(1)
loss = fit(model, opt, 200)
for x in DataLoader(torch.randn(80, 16), batch_size=8, num_workers=1):
    loss = one_step(model, opt, x)
out = subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout
settle()
result(loss, model, variables=len(out.split()), umask=os.umask(0))
