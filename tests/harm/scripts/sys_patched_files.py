# ruff: noqa
"""open, os.open, os.stat, os.listdir, os.fork's relatives, socket.socket and pathlib are replaced by functions that raise,
as pyfakefs and pytest-socket do, in the middle of the training. Compared: exit code, how often they were called."""

import builtins, io, mmap, os, pathlib, socket, subprocess, tempfile, threading
import torch
from torch.utils.data import DataLoader
from _result import fit, net, one_step, result, sgd

called = []


def refuse(name):
    def call(*args, **kwargs):
        called.append(name)
        raise OSError(f"{name} is not for you")

    return call


model = net()
opt = sgd(model)
fit(model, opt, 20)
kept = []
for owner, names in (
    (builtins, "open"), (io, "open"), (os, "open stat lstat listdir scandir mkdir makedirs read write close pread pwrite pipe replace rename unlink remove getpid sched_getaffinity urandom getenv"),
    (socket, "socket create_connection socketpair"), (tempfile, "mkdtemp mkstemp"), (subprocess, "Popen run"),
    (pathlib.Path, "open stat exists mkdir read_text write_text"), (threading, "Thread Lock"), (mmap, "mmap"),
):  # fmt: skip
    for name in names.split():
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, refuse(name))
try:
    loss = fit(model, opt, 600)
    for x in DataLoader(torch.randn(80, 16), batch_size=8):
        loss = one_step(model, opt, x)
finally:
    for owner, name, f in kept:
        setattr(owner, name, f)
result(loss, model, called=sorted(set(called)))
