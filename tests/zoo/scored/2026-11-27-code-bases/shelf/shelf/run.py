import torch

from .interactions import Interactions
from .loop import Fit
from .optimizers import OptimizerPair
from .sampler import SAMPLERS
from .settings import read_settings
from .towers import TwoTower


def main():
    s = read_settings()
    torch.manual_seed(s.seed)
    data = Interactions(s)
    model = TwoTower(s)
    sampler = SAMPLERS[s.sampler](data, s.negatives, s.seed)
    Fit(model, OptimizerPair(model, s), data, sampler, s).run()


if __name__ == "__main__":
    main()
