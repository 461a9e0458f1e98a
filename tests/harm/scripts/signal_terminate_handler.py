# ruff: noqa
# exit: 143
"""A scheduler's SIGTERM: the handler saves, in the middle of whatever runs, and exits with 143. Compared: exit code, that
the checkpoint is whole."""

import io, os, signal, sys, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)


def leave(number, frame):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, buffer)
    buffer.seek(0)
    result(float(loss), whole=sorted(torch.load(buffer)))
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, leave)
loss = fit(model, opt, 40)
model.register_forward_hook(lambda *a: os.kill(os.getpid(), signal.SIGTERM))
fit(model, opt, 10)
