import sys

import torch

from .config import load
from .session import Session


def main(argv):
    opts = load(argv[0] if argv else "kge.json")
    torch.manual_seed(opts.seed)
    Session(opts).fit()


if __name__ == "__main__":
    main(sys.argv[1:])
