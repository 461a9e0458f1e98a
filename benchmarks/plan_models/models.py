"""Eight architectures with random weights, small enough for a step on a CPU; each with a function for its batch."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).parent)]
import fresh_models  # noqa: E402
from fresh_models import (  # noqa: E402, F401
    make_convnext,
    make_denoiser,
    make_graphnet,
    make_mixer,
    make_translator,
    make_waves,
)

# Tensor shapes: B samples, T tokens, D width, V words, E experts, C capacity.


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, memory_BTD: Tensor | None = None) -> Tensor:
        memory_BTD = x_BTD if memory_BTD is None else memory_BTD

        def split(one: Tensor) -> Tensor:
            return one.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query = split(self.query(x_BTD))
        key, value = (split(one) for one in self.key_value(memory_BTD).chunk(2, dim=-1))
        p = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        return x_BTD + self.mlp(self.norm2(x_BTD))


class GPT(nn.Module):
    def __init__(self, layers: int = 6, width: int = 256, heads: int = 4, words: int = 8192, tokens: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD))
        return {"loss": F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten()), "logits": logits_BTV}


class BERT(nn.Module):
    """Post-norm encoder with dropout and a padding mask, predicting every word."""

    def __init__(self, layers: int = 6, width: int = 256, heads: int = 4, words: int = 8192, tokens: int = 128) -> None:
        super().__init__()
        self.words, self.places, self.norm = (
            nn.Embedding(words, width),
            nn.Embedding(tokens, width),
            nn.LayerNorm(width),
        )
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(width, words)

    def forward(self, input_ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        x_BTD = self.encoder(self.dropout(self.norm(x_BTD)), src_key_padding_mask=mask)
        return {"loss": F.cross_entropy(self.head(x_BTD).flatten(0, 1), labels.flatten())}


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.skip(x))


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks, before = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(before, width, stride if number == 0 else 1))
                before = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), labels)}


class ViT(nn.Module):
    def __init__(self, layers: int = 6, width: int = 256, heads: int = 4, size: int = 128, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout=0.1) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x_BTD = self.patches(images).flatten(2).transpose(1, 2)
        x_BTD = torch.cat([self.first.expand(len(images), -1, -1), x_BTD], 1) + self.places
        return self.head(self.norm(self.blocks(x_BTD))[:, 0])


def two_convolutions(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for width in (before, after):
        parts += [nn.Conv2d(width, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down = nn.ModuleList(two_convolutions(b, a) for b, a in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for b, a in itertools.pairwise(widths))
        self.merge = nn.ModuleList(two_convolutions(2 * width, width) for width in widths[:-1])
        self.head = nn.Conv2d(widths[0], 3, 1)

    def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept, x = [], images
        for down in self.down:
            x = down(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(kept[:-1]), strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return {"loss": F.mse_loss(self.head(x), targets)}


class WordLSTM(nn.Module):
    def __init__(self, words: int = 8192, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, words)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits_BTV = self.head(self.lstm(self.words(input_ids))[0])
        return {"loss": F.cross_entropy(logits_BTV.flatten(0, 1), labels.flatten())}


class Experts(nn.Module):
    """Two of eight experts a token, each with a fixed capacity: shapes do not depend on the routing."""

    def __init__(self, width: int, experts: int = 8, chosen: int = 2, spare: float = 1.25) -> None:
        super().__init__()
        self.chosen, self.experts, self.spare = chosen, experts, spare
        self.router = nn.Linear(width, experts, bias=False)
        self.rise = nn.Parameter(torch.randn(experts, width, 2 * width) / math.sqrt(width))
        self.fall = nn.Parameter(torch.randn(experts, 2 * width, width) / math.sqrt(2 * width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        capacity = int(self.spare * self.chosen * len(x_ND) / self.experts)
        score_NE = self.router(x_ND).softmax(-1)
        weight_EC, token_EC = score_NE.t().topk(capacity, dim=-1)
        x_ECD = x_ND[token_EC.flatten()].unflatten(0, token_EC.shape)
        y_ECD = torch.bmm(F.gelu(torch.bmm(x_ECD, self.rise)), self.fall) * weight_EC.unsqueeze(-1)
        y_ND = torch.zeros_like(x_ND).index_add(0, token_EC.flatten(), y_ECD.flatten(0, 1).to(x_ND.dtype))
        return y_ND.view_as(x_BTD)


class MoE(nn.Module):
    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, words: int = 4096) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(layers))
        for block in self.blocks:
            block.mlp = Experts(width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.words(input_ids)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return {"loss": F.cross_entropy(self.head(self.norm(x_BTD)).flatten(0, 1), labels.flatten())}


class CrossBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.cross = Block(width, heads, causal=True), Attention(width, heads)
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTD: Tensor, memory_BTD: Tensor) -> Tensor:
        x_BTD = self.own(x_BTD)
        return x_BTD + self.cross(self.norm(x_BTD), memory_BTD)


class T5(nn.Module):
    """Encoder and decoder, whose blocks are recomputed in backward."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, words: int = 8192) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.decoder = nn.ModuleList(CrossBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        from torch.utils.checkpoint import checkpoint

        memory_BTD, x_BTD = self.words(input_ids), self.words(decoder_input_ids)
        for block in self.encoder:
            memory_BTD = checkpoint(block, memory_BTD, use_reentrant=False)
        for block in self.decoder:
            x_BTD = checkpoint(block, x_BTD, memory_BTD, use_reentrant=False)
        return {"loss": F.cross_entropy(self.head(x_BTD).flatten(0, 1), labels.flatten())}


def make_gpt() -> nn.Module:
    return GPT()


def make_bert() -> nn.Module:
    return BERT()


def make_resnet() -> nn.Module:
    return ResNet50()


def make_vit() -> nn.Module:
    return ViT()


def make_unet() -> nn.Module:
    return UNet()


def make_lstm() -> nn.Module:
    return WordLSTM()


def make_moe() -> nn.Module:
    return MoE()


def make_t5() -> nn.Module:
    return T5()


BATCHES: dict[str, str] = {
    **fresh_models.BATCHES,
    "gpt": "input_ids:int64[2,256],labels:int64[2,256]",
    "bert": "input_ids:int64[4,128],mask:bool[4,128],labels:int64[4,128]",
    "resnet": "images:float32[8,3,96,96],labels:int64[8]",
    "vit": "float32[4,3,128,128]",
    "unet": "images:float32[4,3,96,96],targets:float32[4,3,96,96]",
    "lstm": "input_ids:int64[8,64],labels:int64[8,64]",
    "moe": "input_ids:int64[4,256],labels:int64[4,256]",
    "t5": "input_ids:int64[4,128],decoder_input_ids:int64[4,128],labels:int64[4,128]",
}


def real_tensor(dtype: str, shape: list[int]) -> Any:
    """Values that every model accepts: class 0 or 1, no padding."""
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, dtype=kind)
    return torch.zeros(shape, dtype=kind) if kind == torch.bool else torch.randint(0, 2, shape, dtype=kind)
