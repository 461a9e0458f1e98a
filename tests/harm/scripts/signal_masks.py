# ruff: noqa
"""Signal masks, handlers, wake-up descriptor and timers as the script set them, seen from inside forward, hooks and
backward; sigwait and sigtimedwait get the script's own signals. Compared: all of it."""

import os, signal

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
import torch
from _result import fit, net, result, sgd


def view():
    mask = tuple(sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    handlers = [
        str(getattr(signal.getsignal(s), "__name__", signal.getsignal(s))) for s in sorted(signal.valid_signals())
    ]
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd)
    with open("/proc/self/status") as file:
        kernel = "".join(x.split()[1] for x in file if x.startswith(("SigBlk", "SigIgn", "SigCgt", "SigPnd")))
    return hash(str(mask) + "|".join(handlers) + kernel), mask, fd, kernel


seen = []
model = net()
opt = sgd(model)
model.register_forward_hook(lambda *a: seen.append(view()))
next(model.parameters()).register_hook(lambda g: seen.append(view()) or None)
seen.append(view())
fit(model, opt, 30)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP})
got = []
for step in range(30):
    loss = fit(model, opt, 1)
    os.kill(os.getpid(), (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)[step % 3])
    got.append(int(signal.sigwait({signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP})))
rest = signal.sigtimedwait({signal.SIGUSR1, signal.SIGUSR2}, 0)
result(loss, model, views=len(set(seen)), kernel=seen[-1][3], mask=seen[-1][1], got=sum(got), rest=rest)
