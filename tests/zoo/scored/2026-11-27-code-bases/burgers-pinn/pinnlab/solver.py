import torch

from .domains import CollocationPool, Rectangle
from .equations import EQUATIONS
from .networks import FieldNet


class Solver:
    def __init__(self, cfg, monitors=()):
        self.cfg = cfg
        self.monitors = list(monitors)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.equation = EQUATIONS[cfg.equation]()
        self.pool = CollocationPool(Rectangle(generator=self.gen), cfg, self.gen)
        self.net = FieldNet(cfg)
        self._configure_autograd()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=cfg.lr, fused=True)
        gamma = (cfg.lr_final / cfg.lr) ** (1.0 / cfg.max_iters)
        self.sched = torch.optim.lr_scheduler.ExponentialLR(self.opt, gamma)

    def _configure_autograd(self):
        torch.autograd.set_detect_anomaly(self.cfg.trace_nan)

    def _emit(self, event, *args):
        for m in self.monitors:
            getattr(m, event)(self, *args)

    def loss_terms(self, pts):
        eq = self.equation
        res = eq.residual(self.net, pts["interior"])
        data = self.net(torch.cat([pts["initial"], pts["boundary"]]))
        u0, ub = data.split([len(pts["initial"]), len(pts["boundary"])])
        return {
            "residual": res.square().mean(),
            "initial": (u0 - eq.initial_value(pts["initial"])).square().mean(),
            "boundary": (ub - eq.boundary_value(pts["boundary"])).square().mean(),
        }

    def iterate(self):
        terms = self.loss_terms(self.pool.draw())
        loss = (terms["residual"] + self.cfg.weight_initial * terms["initial"]
                + self.cfg.weight_boundary * terms["boundary"])
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.sched.step()
        return terms

    def run(self):
        self._emit("on_start")
        for it in range(1, self.cfg.max_iters + 1):
            terms = self.iterate()
            self._emit("on_iteration", it, terms)
        self._emit("on_end")
