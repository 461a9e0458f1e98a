"""Six architectures that no rule of the trace was written after; models.py offers them beside its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Tensor shapes: B samples, C channels, D width, E edges, H and W places, N nodes, T tokens, V words.


class Mixer(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, width: int = 192, depth: int = 6, patches: int = 144) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, stride=8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)) for _ in range(depth)
        )
        self.within = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 768), nn.GELU(), nn.Linear(768, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, 100)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BTD = self.patch(images).flatten(2).transpose(1, 2)
        for number, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x_BTD = x_BTD + across(self.norms[2 * number](x_BTD).transpose(1, 2)).transpose(1, 2)
            x_BTD = x_BTD + within(self.norms[2 * number + 1](x_BTD))
        return {"loss": F.cross_entropy(self.head(x_BTD.mean(1)), labels)}


class ConvNext(nn.Module):
    """Depthwise convolutions between layer norms over the channels."""

    def __init__(self, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.depthwise = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))
        self.scales = nn.ParameterList(nn.Parameter(torch.full((width,), 0.1)) for _ in range(depth))
        self.head = nn.Linear(width, 100)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x_BCHW = self.stem(images)
        for depthwise, norm, wide, narrow, scale in zip(
            self.depthwise, self.norms, self.wide, self.narrow, self.scales, strict=True
        ):
            inner = narrow(F.gelu(wide(norm(depthwise(x_BCHW).permute(0, 2, 3, 1)))))
            x_BCHW = x_BCHW + (scale * inner).permute(0, 3, 1, 2)
        return {"loss": F.cross_entropy(self.head(x_BCHW.mean((2, 3))), labels)}


class Translator(nn.Module):
    """Two GRUs with attention by hand between them."""

    def __init__(self, words: int = 4000, width: int = 256) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.decoder = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.key, self.out = nn.Linear(width, width), nn.Linear(2 * width, words)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> dict[str, Tensor]:
        read_BTD, state = self.encoder(self.source(source))
        made_BTD, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(made_BTD @ self.key(read_BTD).transpose(1, 2) / 16.0, dim=-1)
        logits = self.out(torch.cat([made_BTD, weights @ read_BTD], dim=-1))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}


class GraphNet(nn.Module):
    """Messages along edges, added up at their targets."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.lift = nn.Linear(16, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, sources: Tensor, targets: Tensor) -> dict[str, Tensor]:
        # Random integers name the nodes; the remainder keeps them in range.
        from_E, to_E = sources.remainder(nodes.shape[0]), targets.remainder(nodes.shape[0])
        x_ND = self.lift(nodes)
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent_ED = torch.relu(message(torch.cat([x_ND[from_E], x_ND[to_E]], dim=1)))
            got_ND = torch.zeros_like(x_ND).index_add(0, to_E, sent_ED.to(x_ND.dtype))
            x_ND = x_ND + torch.relu(norm(update(torch.cat([x_ND, got_ND], dim=1))))
        return {"loss": self.head(x_ND).square().mean()}


class Denoiser(nn.Module):
    """A transformer whose norms are scaled and shifted by the time, as diffusion models have it."""

    def __init__(self, width: int = 256, depth: int = 5, heads: int = 4) -> None:
        super().__init__()
        self.depth, self.heads = depth, heads
        self.patch, self.unpatch = nn.Linear(48, width), nn.Linear(width, 48)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 6 * width * depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2 * depth))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, patches: Tensor, noise: Tensor, times: Tensor) -> dict[str, Tensor]:
        x_BTD = self.patch(patches + noise)
        parts = self.time(times).unflatten(-1, (self.depth, 6, -1))
        for number, (attention, mlp) in enumerate(zip(self.attention, self.mlps, strict=True)):
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = parts[:, number].unsqueeze(2).unbind(1)
            inner = self.norms[2 * number](x_BTD) * (1 + scale) + shift
            x_BTD = x_BTD + gate * attention(inner, inner, inner, need_weights=False)[0]
            x_BTD = x_BTD + gate_mlp * mlp(self.norms[2 * number + 1](x_BTD) * (1 + scale_mlp) + shift_mlp)
        return {"loss": F.mse_loss(self.unpatch(x_BTD), noise)}


class Waves(nn.Module):
    """Dilated convolutions over time with gates and skip connections."""

    def __init__(self, width: int = 64, depth: int = 10) -> None:
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, padding=2**n, dilation=2**n) for n in range(depth))
        self.mixed = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, sound: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        x_BCT, skipped = self.lift(sound), None
        for dilated, mixed in zip(self.dilated, self.mixed, strict=True):
            value, gate = dilated(x_BCT).chunk(2, dim=1)
            rest, skip = mixed(torch.tanh(value) * torch.sigmoid(gate)).chunk(2, dim=1)
            x_BCT = x_BCT + rest
            skipped = skip if skipped is None else skipped + skip
        return {"loss": F.l1_loss(self.head(skipped), wanted)}


def make_mixer() -> nn.Module:
    return Mixer()


def make_convnext() -> nn.Module:
    return ConvNext()


def make_translator() -> nn.Module:
    return Translator()


def make_graphnet() -> nn.Module:
    return GraphNet()


def make_denoiser() -> nn.Module:
    return Denoiser()


def make_waves() -> nn.Module:
    return Waves()


BATCHES = {
    "mixer": "images:float32[16,3,96,96],labels:int64[16]",
    "convnext": "images:float32[8,3,96,96],labels:int64[8]",
    "translator": "source:int64[16,40],target:int64[16,40],labels:int64[16,40]",
    "graphnet": "nodes:float32[4000,16],sources:int64[20000],targets:int64[20000]",
    "denoiser": "patches:float32[8,144,48],noise:float32[8,144,48],times:float32[8,256]",
    "waves": "sound:float32[4,1,4000],wanted:float32[4,1,4000]",
}
