# ruff: noqa
"""What inspect, help and isinstance see of torch: signatures, names, docs, modules, kinds and identities of aliases of all
functions that a profiler may replace. Compared: all."""

import inspect, re, types, torch, torch.distributed as dist
from _result import fit, net, result, sgd

model = net()
loss = fit(model, sgd(model), 30)
O, L, M = torch.optim, torch.utils.data.DataLoader, torch.nn.Module
targets = {
    "module_call": M.__call__, "loader_init": L.__init__, "loader_iter": L.__iter__, "save": torch.save, "load": torch.load,
    "compile": torch.compile, "backward": torch.Tensor.backward, "autograd": torch.autograd.backward, "grad": torch.autograd.grad,
    "opt_init": O.Optimizer.__init__, "sgd_step": O.SGD.step, "adam_step": O.Adam.step, "scaler_step": torch.amp.GradScaler.step,
    "ddp": torch.nn.parallel.DistributedDataParallel.__init__, "all_reduce": dist.all_reduce, "barrier": dist.barrier,
    "to": torch.Tensor.to, "copy_": torch.Tensor.copy_, "checkpoint": torch.utils.checkpoint.checkpoint,
    "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__, "add_group": O.Optimizer.add_param_group,
}  # fmt: skip
for name, f in targets.items():
    try:
        signature = re.sub("0x[0-9a-f]+|from '[^']*'", "", str(inspect.signature(f)))
    except ValueError:
        signature = "none"
    print(
        name,
        type(f).__name__,
        f.__name__,
        f.__qualname__,
        getattr(f, "__module__", None),
        len(f.__doc__ or ""),
        signature[:200],
    )
same = [
    torch.save is torch.serialization.save,
    dist.all_reduce is dist.distributed_c10d.all_reduce,
    M.__call__ is torch.nn.modules.module.Module.__call__,
]
functions = sum(isinstance(f, types.FunctionType) for f in targets.values())
odd = [n for n in vars(model[0]) if "hotloop" in n] + [n for n in vars(M) if "hotloop" in n]
bases = [c.__module__ for c in type(model).__mro__ + O.SGD.__mro__]
result(loss, same=same, functions=functions, odd=odd, bases=bases, hooks=len(model._forward_hooks))
