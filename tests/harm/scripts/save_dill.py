# ruff: noqa
"""A model and an optimizer class of the script's own are saved whole by dill, with recursion, after training.
Compared: exit code, sizes of what was written."""

import io, torch
from _result import fit, net, result, sgd

try:
    import dill
except ImportError:
    dill = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


model = Net()
opt = Own(model.parameters(), lr=1e-2)
loss = fit(model, opt, 90)
if dill is None:
    print("skipped: no dill")
    result(loss)
else:
    buffer = io.BytesIO()
    torch.save(model, buffer, pickle_module=dill)
    text, kind = dill.dumps(model, byref=False, recurse=True), dill.dumps(Own, byref=False, recurse=True)
    again = dill.loads(text)
    same = torch.equal(again(torch.ones(1, 16)), model(torch.ones(1, 16)))
    dill.loads(dill.dumps(opt, recurse=True)).step()
    result(loss, model, same=same, hotloop_in_it=b"hotloop" in text + kind + buffer.getvalue())
