# ruff: noqa
"""The script blocks SIGUSR1 after its warm-up and asks sigpending at each step; a thread of another that does not block
it would take the signal, and the process would die. Compared: exit code, whether it is seen as pending."""

import os, signal, subprocess, time

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
import torch
from _result import fit, net, one_step, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 30)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
other = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -USR1 {os.getpid()}"])
end, seen = time.perf_counter() + 5, False
while not seen and time.perf_counter() < end:
    one_step(model, opt, torch.randn(8, 16))
    seen = signal.SIGUSR1 in signal.sigpending()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
other.wait()
result(loss, seen=seen, draws="any")
