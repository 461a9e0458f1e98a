import argparse

from .config import load_config
from .runner import IterRunner


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config", nargs="?", default="configs/resnet_shapes.py")
    IterRunner(load_config(p.parse_args().config)).run()


if __name__ == "__main__":
    main()
