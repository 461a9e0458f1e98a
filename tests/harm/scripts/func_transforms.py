# ruff: noqa
"""vmap, grad, vjp, jvp, jacrev, hessian, functional_call and an ensemble by stack_module_state, in steps of a training.
Compared: exit code, loss bits."""

import torch
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from _result import net, one_step, result, sgd

model = net(8, 1)
opt = sgd(model)
parts = [net(8, 1) for _ in range(3)]
params, buffers = stack_module_state(parts)
total = 0.0


def of(p, x):
    return functional_call(model, p, (x,)).sum()


for step in range(20):
    loss = one_step(model, opt, torch.randn(8, 8))
    own = {k: v.detach() for k, v in model.named_parameters()}
    x = torch.randn(4, 8)
    total += float(vmap(grad(of), (None, 0))(own, x)["0.weight"].sum())
    total += float(jacrev(lambda v: model(v))(x[0]).sum()) + float(jvp(model, (x,), (x,))[1].sum())
    total += float(
        vmap(lambda p, b, v: functional_call(parts[0], (p, b), (v,)), (0, 0, None))(params, buffers, x).sum()
    )
    total += float(hessian(lambda v: model(v).sum())(x[0]).sum())
result(loss, model, total=total)
