import torch
import torch.nn.functional as F


class Engine:
    def __init__(self, net, windows, cfg, scores, callbacks):
        self.net, self.windows, self.cfg = net, windows, cfg
        self.scores = scores
        self.callbacks = [scores, *callbacks]
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.fit.lr, fused=True)
        self.step = 0
        self.prediction = self.target = None

    def emit(self, event):
        for cb in self.callbacks:
            getattr(cb, event)(self)

    def state(self):
        return {"step": self.step, "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def train_step(self, x, y):
        out = self.net(x)
        loss = F.smooth_l1_loss(out, y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.fit.clip)
        self.optimizer.step()
        self.prediction, self.target = out.detach(), y

    def fit(self):
        self.emit("on_fit_start")
        stream = iter(self.windows)
        while self.step < self.cfg.fit.steps:
            x, y = next(stream)
            self.train_step(x, y)
            self.step += 1
            self.emit("on_step_end")
        self.emit("on_fit_end")
