# ruff: noqa
"""Landmines are saved: inside checkpoints, as a file object that can only be written, as a path, as a pickle module.
Compared: landmine calls, bytes written."""

import io, os, pickle, tempfile, torch
from _mines import NAMED, mine_type, mines
from _result import fit, net, result, sgd

kept = Kept = mine_type("kept", named=NAMED, without=("__reduce_ex__", "__reduce__", "__getattribute__"))
written = io.BytesIO()


def write(self, data):
    return written.write(data)


def path(self):
    return os.path.join(folder, "model.pt")


File = mine_type(
    "file",
    without=("__getattribute__", "__fspath__"),
    write=write,
    flush=lambda self: None,
    tell=lambda self: written.tell(),
)
Path = mine_type("path", os.PathLike, without=("__getattribute__",), __fspath__=path)
folder = tempfile.mkdtemp()
model = net()
opt = sgd(model)
for epoch in range(3):
    loss = fit(model, opt, 10)
    torch.save({"model": model.state_dict(), "own": Kept(), "list": [Kept()]}, File())
    torch.save(model.state_dict(), Path())
result(loss, model, written=written.tell(), size=os.path.getsize(path(None)), **mines())
