import os
from types import SimpleNamespace

HPARAMS = dict(
    symbols=60, text_max=32, text_min=26, mel=80, frames_per_symbol=(3, 4),
    utterances=512, batch=16, width=96, heads=2, layers=3, decoder_width=96, decoder_layers=4,
    lr=4e-4, clip=5.0, steps=300, log_every=50, seed=404,
    search="single",
)


def load(**overrides):
    hp = SimpleNamespace(**{**HPARAMS, **overrides})
    if os.environ.get("REPAIRED"):
        hp.search = "batched"
    return hp
