"""RankAnalysis -> what the code of its samples does: random draws, pictures, text."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.analysis import Line, LoaderFacts, RankAnalysis

RANDOM_NAMES = ("rand", "rng", "shuffle", "augment")
PICTURE_NAMES = (
    "imread",
    "imdecode",
    "decode_image",
    "decode_jpeg",
    "read_image",
    "pil_loader",
    "image.open",
    "resize",
)
LEAST_SAMPLES = 20
"""Below this many stack samples a share of them is no measurement."""
TEXT_NAMES = ("tokenize", "tokenizer", "encode_plus", "batch_encode", "detokenize")
SLOW_TOKENIZERS = ("transformers.tokenization_python:", "transformers.tokenization_utils:", ".tokenization_")
"""Modules of transformers' tokenizers that are written in Python; those in Rust are wrapped by ``*_fast`` and
``tokenization_utils_tokenizers``."""
FAST_TOKENIZERS = ("_fast:", "tokenization_utils_tokenizers:", "tokenization_utils_fast:", "tokenization_utils_base:")


def draws_random(rank: RankAnalysis, loader: LoaderFacts) -> bool | None:
    """Whether reading samples draws random numbers: seen, or named in their code; None when that is not known.

    Where no global generator moved, the code may name one of its own, which may be seeded by the sample or not.
    """
    if loader.draws_random or not _calls_any(rank, RANDOM_NAMES):
        return loader.draws_random
    return None if loader.draws_random is False else True


def before_draws_ratio(rank: RankAnalysis) -> float | None:
    """Share of the wait in which a sample was read before its first random number; None where few stacks were seen."""
    lines = sample_lines(rank)
    if sum(line.samples for line in lines) < LEAST_SAMPLES:
        return None
    return min(1.0, sum(line.before_draws_ratio for line in lines))


def describe_preparation(rank: RankAnalysis) -> str:
    """What a user of such samples would do ahead of the training."""
    if _calls_any(rank, PICTURE_NAMES):
        return "decode and resize the images once, and store the results"
    if _calls_any(rank, TEXT_NAMES):
        return "tokenise the text once, and store the token ids"
    return "store what is the same in every epoch"


def slow_tokenizer(lines: Iterable[Line]) -> str | None:
    """The module of a tokenizer written in Python that these lines were seen in; None when there is none."""
    for line in lines:
        module = f"{line.leaf.partition(':')[0]}:"
        is_slow = module.startswith("transformers.") and any(name in module for name in SLOW_TOKENIZERS)
        if is_slow and not module.endswith(FAST_TOKENIZERS):
            return module[:-1]
    return None


def _calls_any(rank: RankAnalysis, names: tuple[str, ...]) -> bool:
    called = (call.lower() for line in sample_lines(rank) if len(line.stack) > 1 for call in line.calls)
    return any(name in call for call in called for name in names)


def sample_lines(rank: RankAnalysis) -> tuple[Line, ...]:
    """Where the main process was while it waited for a batch or made it."""
    return rank.lines.get("input_wait_ns", ())
