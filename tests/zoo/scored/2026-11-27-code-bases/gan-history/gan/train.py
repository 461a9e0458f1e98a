import torch

from .settings import from_environment
from .shapes import ShapeImages
from .trainer import GanTrainer


def report(trainer, i, losses):
    if i % trainer.s.report == 0:
        print(f"{i:4d} d {losses[0].item():.3f} g {losses[1].item():.3f}", flush=True)


def main():
    s = from_environment()
    torch.manual_seed(s.seed)
    trainer = GanTrainer(s, ShapeImages(s))
    trainer.listeners.append(report)
    trainer.fit()


if __name__ == "__main__":
    main()
