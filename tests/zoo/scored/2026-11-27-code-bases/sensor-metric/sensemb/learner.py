import torch

from .mixins import ClockMixin, HistogramMixin, TripletMixin
from .nets import WindowEncoder
from .windows import WindowBank


class BaseLearner:
    def __init__(self, args):
        self.args = args
        self.iteration = 0
        self.bank = WindowBank(args)
        self.net = WindowEncoder(args)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=args.lr, fused=True)


class Learner(TripletMixin, HistogramMixin, ClockMixin, BaseLearner):
    def update(self):
        x, labels = self.bank.draw()
        loss = self.triplet_loss(self.net(x), labels)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        self.iteration += 1
        self.record_histograms()
        return loss.detach()

    def run(self):
        self.open_histograms()
        self.start_clock()
        for _ in range(self.args.iters):
            loss = self.update()
            if self.iteration % 20 == 0:
                print(f"iter {self.iteration:4d} triplet {loss.item():.4f} {self.elapsed():.1f}s", flush=True)
        print(f"{self.iteration} iterations, {self.elapsed():.2f}s", flush=True)
        self.hist_file.close()
