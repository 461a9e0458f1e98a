import torch.nn as nn
import torch.nn.functional as F

from .registry import register


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.space = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.space(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


@register("backbone")
class PatchMixer(nn.Module):
    def __init__(self, patch, dim, depth, tokens):
        super().__init__()
        self.width = dim
        self.cut = nn.Conv2d(3, dim, patch, patch)
        self.layers = nn.Sequential(*[MixerLayer(tokens, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        return self.norm(self.layers(x)).mean(1)


@register("head")
class LinearHead(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, features, target):
        return F.cross_entropy(self.fc(features), target, label_smoothing=0.1)


class Classifier(nn.Module):
    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x, y):
        return self.head(self.backbone(x), y)
