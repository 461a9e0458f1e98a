"""pack_sequences: each token's loss is the one that it has alone, and what would mix sequences is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from hotloop import HotloopError, pack_sequences

PYTHON = Path(__file__).parents[2] / ".venv-frameworks" / "bin" / "python"
SOURCE = Path(__file__).parents[2] / "src"
VOCABULARY = 40


class Decoder(nn.Module):
    """Two causal layers that take positions and a mask, as models of language do."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Embedding(64, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any) -> Any:
        x = self.tokens(input_ids) + self.places(position_ids)
        for layer in self.qkv:
            q, k, v = layer(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.head(x)


def losses_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of each label, shifted by one."""
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")


def some_sequences(count: int = 9) -> list[list[int]]:
    draws = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 20, (count,), generator=draws).tolist()
    return [torch.randint(VOCABULARY, (size,), generator=draws).tolist() for size in sizes]


def test_each_token_has_the_loss_and_the_gradient_that_it_has_alone() -> None:
    torch.manual_seed(0)
    model, sequences = Decoder().double(), some_sequences()
    packed = pack_sequences(sequences, 32)
    assert len(packed.input_ids) < len(sequences)
    together = losses_of(model(**packed.inputs_for(model)), packed.labels)
    together.sum().backward()
    packed_gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    for place, ids in enumerate(sequences):
        alone = pack_sequences([ids], len(ids))
        expected = losses_of(model(**alone.inputs_for(model)), alone.labels)
        mine = (packed.sequence_ids[:, 1:] == place) & (packed.labels[:, 1:] != -100)
        torch.testing.assert_close(together[mine], expected[0], rtol=1e-10, atol=1e-12)
        expected.sum().backward()
    for packed_gradient, one in zip(packed_gradients, model.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(packed_gradient, one.grad, rtol=1e-9, atol=1e-12)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=30))
def test_every_token_stands_once_and_rows_are_few(sizes: list[int]) -> None:
    sequences = [[place] * size for place, size in enumerate(sizes)]
    packed = pack_sequences(sequences, 16, pad_id=99)
    for place, size in enumerate(sizes):
        mine = packed.sequence_ids == place
        assert packed.input_ids[mine].tolist() == [place] * size
        assert packed.position_ids[mine].tolist() == list(range(size))
    assert int((packed.labels != -100).sum()) == sum(sizes) - len(sizes)
    assert packed.padding_ratio == pytest.approx(1 - sum(sizes) / packed.input_ids.numel())
    assert len(packed.input_ids) <= 11 / 9 * -(-sum(sizes) // 16) * 2 + 1
    assert packed.input_ids[packed.sequence_ids < 0].eq(99).all()


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "there is no sequence"),
        ([[1], []], "sequence 1 has 0 tokens; give 1 to 4"),
        ([[1, 2, 3, 4, 5]], "sequence 0 has 5 tokens; give 1 to 4"),
        ([[0.5]], "type torch.float32"),
        ([[[1], [2]]], r"shape \(2, 1\)"),
    ],
)
def test_what_cannot_be_packed_is_named(sequences: list[Any], message: str) -> None:
    with pytest.raises(HotloopError, match=message):
        pack_sequences(sequences, 4)


def test_a_model_that_would_mix_sequences_is_refused() -> None:
    class NoPlaces(nn.Module):
        def forward(self, input_ids: Any, attention_mask: Any = None, **more: Any) -> None:
            raise AssertionError("never called")

    with pytest.raises(HotloopError, match=r"NoPlaces.forward takes no position_ids: packed sequences would see"):
        pack_sequences([[1]], 4).inputs_for(NoPlaces())


TRANSFORMERS = """
import sys, torch
import hotloop
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
sequences = [torch.randint(40, (size,)).tolist() for size in (3, 9, 5, 12, 1, 7)]
small = dict(vocab_size=40, attn_implementation=sys.argv[1])
llama = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **small)
for kind, config in (
    (GPT2LMHeadModel, GPT2Config(n_embd=32, n_layer=2, n_head=4, **small)), (LlamaForCausalLM, llama)
):
    model = kind(config).double().eval()
    packed = hotloop.pack_sequences(sequences, 16)
    together = model(**packed.inputs_for(model)).loss
    losses = [(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss, len(ids) - 1) for ids in sequences]
    alone = sum(loss * count for loss, count in losses if count) / sum(count for _, count in losses)
    print(abs(float(together - alone)) < 1e-6)
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-frameworks (make frameworks creates it)")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_models_of_transformers_have_the_loss_of_the_unpacked_batch(attention: str) -> None:
    command = [str(PYTHON), "-c", TRANSFORMERS, attention]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"}
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
