"""Trains a small model: the part of the project that changes every day."""

import argparse

from model import build_model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    model = build_model(width=256)
    for step in range(steps):
        model.update(step)


if __name__ == "__main__":
    main()
