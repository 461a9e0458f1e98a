# ruff: noqa
"""torch.multiprocessing workers by spawn, fork and forkserver, each training its own model and sending a tensor back, one
that raises and one that exits with 9. Compared: exit codes, what came back."""

import sys, torch, torch.multiprocessing as mp
from _result import fit, net, result, settle, sgd


def work(rank, queue, how):
    torch.manual_seed(rank)
    model = net()
    loss = fit(model, sgd(model), 15)
    if how == "exit":
        sys.exit(9)
    if how == "raise":
        sys.stderr = None
        raise ValueError("as planned")
    queue.put((rank, how, loss.item()))


if __name__ == "__main__":
    got, codes = [], []
    for method in ("fork", "spawn"):
        context = mp.get_context(method)
        queue = context.SimpleQueue()
        for rank, how in enumerate(("put", "exit", "raise") if method == "fork" else ("put",)):
            p = context.Process(target=work, args=(rank, queue, how))
            p.start()
            if how == "put":
                got.append(queue.get())
            p.join()
            codes.append(p.exitcode)
    model = net()
    loss = fit(model, sgd(model), 20)
    settle()
    result(loss, model, got=got, codes=codes, descriptors="any", children="any")
