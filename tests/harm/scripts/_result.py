# ruff: noqa
"""What the scripts share: the one RESULT line, and a training of a few lines. Importing it seeds and takes one thread."""

import gc
import hashlib
import os
import random
import struct
import time

import torch

BEGAN = time.perf_counter()
_clock, _cpu, _open, _listdir, _write = time.perf_counter, time.process_time, open, os.listdir, os.write
_longest = 0.0
torch.set_num_threads(1)
torch.manual_seed(0)
random.seed(0)


def net(width=16, depth=2, out=1):
    """A small perceptron."""
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, out))


def sgd(model, lr=1e-2):
    return torch.optim.SGD(model.parameters(), lr=lr)


def one_step(model, opt, x):
    """One step on the mean square of the output; its wall time counts for ``longest_ms``."""
    global _longest
    start = _clock()
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    _longest = max(_longest, _clock() - start)
    return loss


def fit(model, opt, steps=30, width=16, rows=8):
    for _ in range(steps):
        loss = one_step(model, opt, torch.randn(rows, width))
    return loss


class step_time:
    """A context: the time inside counts for ``longest_ms``."""

    def __enter__(self):
        self.start = _clock()

    def __exit__(self, *error):
        global _longest
        _longest = max(_longest, _clock() - self.start)


def bits(value):
    """A number's bits."""
    return struct.pack(">d", float(value.detach() if isinstance(value, torch.Tensor) else value)).hex()


def digest(tensors):
    """A short hash of the bytes of tensors."""
    return hashlib.sha1(b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)).hexdigest()[:10]


def _status():
    with _open("/proc/self/status") as file:
        return {line.partition(":")[0]: line.partition(":")[2] for line in file}


def rss_mb():
    return int(_status()["VmRSS"].split()[0]) >> 10


def children():
    found = 0
    for task in _listdir("/proc/self/task"):
        try:
            with _open(f"/proc/self/task/{task}/children") as file:
                found += len(file.read().split())
        except OSError:
            pass
    return found


def descriptors():
    return len(_listdir("/proc/self/fd")) - 1


def threads():
    return len(_listdir("/proc/self/task"))


def draws():
    """What stands in the generators of torch and of random."""
    state = torch.random.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode()
    return hashlib.sha1(state).hexdigest()[:8]


def settle():
    """Wait until what loader workers and processes of the script leave behind is gone."""
    for _ in range(3):
        gc.collect()
        time.sleep(0.1)


def line(loss=None, model=None, **fields):
    """The text of the RESULT line: what every script tells, then its own fields."""
    told = {} if loss is None else {"loss": bits(loss)}
    if model is not None:
        told["weights"] = digest(model.parameters())
    told |= fields
    told = {"draws": draws(), "threads": threads(), "descriptors": descriptors(), "children": children()} | told
    if _longest:
        told["longest_ms"] = 1000 * _longest
    told["peak_mb"] = int(_status()["VmHWM"].split()[0]) >> 10
    told["cpu_s"], told["s"] = _cpu(), _clock() - BEGAN
    shown = ((k, f"{v:.3f}" if isinstance(v, float) else str(v).replace(" ", "")) for k, v in told.items())
    return "RESULT " + " ".join(f"{key}={value}" for key, value in shown)


def result(loss=None, model=None, **fields):
    print(line(loss, model, **fields), flush=True)


def result_to_file(loss=None, model=None, **fields):
    """For scripts without a standard output: the harness also reads RESULT.txt in the working directory."""
    with _open("RESULT.txt", "a") as file:
        file.write(line(loss, model, **fields) + "\n")
