import torch

from .args import parse
from .learner import Learner


def main():
    args = parse()
    torch.manual_seed(args.seed)
    Learner(args).run()


if __name__ == "__main__":
    main()
