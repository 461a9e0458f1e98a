# ruff: noqa
"""After 60 steps: export, trace, script, fx, deepcopy, pickle, functional_call. Compared: which of them fail."""

import copy, pickle, torch
from _result import fit, net, result, sgd

model = net()
opt = sgd(model)
loss = fit(model, opt, 60)
x, failed = torch.ones(2, 16), []
todo = {
    "export": lambda: torch.export.export(model, (x,)).module()(x),
    "strict": lambda: torch.export.export(model, (x,), strict=True).module()(x),
    "trace": lambda: torch.jit.trace(model, (x,))(x),
    "script": lambda: torch.jit.script(model)(x),
    "fx": lambda: torch.fx.symbolic_trace(model)(x),
    "deepcopy": lambda: copy.deepcopy(model)(x),
    "pickle": lambda: pickle.loads(pickle.dumps(model))(x),
    "optimizer": lambda: (pickle.loads(pickle.dumps(opt)).step(), model(x))[1],
    "functional": lambda: torch.func.functional_call(model, dict(model.named_parameters()), (x,)),
}
want = model(x)
for name, do in todo.items():
    try:
        if not torch.equal(do(), want):
            failed.append(name + ":differs")
    except Exception as error:
        failed.append(f"{name}:{type(error).__name__}")
result(loss, model, failed=failed)
