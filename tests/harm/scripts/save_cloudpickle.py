# ruff: noqa
"""A model, an optimizer class and a training function of __main__ go by value through cloudpickle, before, in and after
the training, into another process that never heard of it. Compared: exit code, what is in the bytes, what comes back."""

import subprocess, sys, torch
from _result import fit, net, one_step, result, sgd

try:
    import cloudpickle
except ImportError:
    cloudpickle = None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 1)

    def forward(self, x):
        return self.a(x)


class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def main():
    model = Net()
    opt = Own(model.parameters(), lr=1e-2)

    def work():
        model(torch.ones(4, 16)).mean().backward()
        opt.step()
        return float(model(torch.ones(1, 16)))

    if cloudpickle is None:
        print("skipped: no cloudpickle")
        return result(fit(model, opt))
    texts = [cloudpickle.dumps((Net, Own, work))]
    loss = fit(model, opt, 60)
    texts.append(cloudpickle.dumps((model, opt, work)))
    code = "import sys, pickle; print(pickle.loads(sys.stdin.buffer.read())[2]())"
    out = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main(); " + code], input=texts[1], env={}, capture_output=True
    )
    result(loss, model, found=[b"hotloop" in t for t in texts], remote=out.stdout.decode().strip() or out.stderr[-200:])


main()
