# ruff: noqa
"""A filter of the kernel (seccomp) makes open, openat, socket, connect, clone, memfd_create and ftruncate fail with EPERM after
warm-up; skipped where the kernel refuses. Compared: exit code, loss bits."""

import ctypes, platform, struct, torch
from torch.utils.data import DataLoader
from _result import _status, fit, net, one_step, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 30)
told = _status()["VmHWM"]
calls = [2, 257, 41, 42, 49, 56, 57, 58, 77, 319, 435, 285, 18, 1000]  # x86-64
program = b""


def op(code, jt, jf, k):
    return struct.pack("HBBI", code, jt, jf, k)


program += op(0x20, 0, 0, 0)
for n in calls:
    program += op(0x15, 0, 1, n) + op(0x06, 0, 0, 0x00050001)
program += op(0x06, 0, 0, 0x7FFF0000)
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(program)
header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
from _result import draws

before = draws
if platform.machine() != "x86_64" or libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
    print("skipped: no seccomp here")
loss = fit(model, opt, 600)
for x in DataLoader(torch.randn(80, 16), batch_size=8):
    loss = one_step(model, opt, x)
from _result import bits, digest

print(f"RESULT loss={bits(loss)} weights={digest(model.parameters())} draws={draws()}", flush=True)
