from accelerate import Accelerator
from accelerate.utils import set_seed

from .conf import conf
from .fitter import Fitter
from .policy import DecisionTransformer
from .trajectories import EpisodeStore, WindowSampler


def main():
    c = conf()
    set_seed(c.seed)
    acc = Accelerator(cpu=True)
    fitter = Fitter(acc, DecisionTransformer(c), WindowSampler(EpisodeStore(c), c), c)

    @fitter.observe
    def report(i, loss, seconds):
        if i % 25 == 0:
            acc.print(f"{i:5d}  action mse {loss.item():.4f}  {seconds:.1f}s", flush=True)

    fitter.run()


if __name__ == "__main__":
    main()
