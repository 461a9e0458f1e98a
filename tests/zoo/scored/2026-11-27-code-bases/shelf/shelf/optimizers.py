import torch


class OptimizerPair:
    """One optimizer for the item table, one for the rest."""

    def __init__(self, model, s):
        table = list(model.table.parameters())
        rest = [p for n, p in model.named_parameters() if not n.startswith("table.")]
        if s.row_gradients:
            self.table = torch.optim.SparseAdam(table, lr=s.lr)
        else:
            self.table = torch.optim.Adam(table, lr=s.lr, fused=True)
        self.rest = torch.optim.Adam(rest, lr=s.lr, fused=True)

    def zero_grad(self):
        self.table.zero_grad(set_to_none=True)
        self.rest.zero_grad(set_to_none=True)

    def step(self):
        self.table.step()
        self.rest.step()
