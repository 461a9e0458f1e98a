import torch.nn as nn
import torch.nn.functional as F

from .registry import MODELS


class ConvBN(nn.Module):
    def __init__(self, cin, cout, stride=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(cout)
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a = ConvBN(cin, cout, stride)
        self.b = ConvBN(cout, cout, act=False)
        self.skip = nn.Identity() if cin == cout and stride == 1 else nn.Conv2d(cin, cout, 1, stride, bias=False)
        self.out = nn.ReLU()

    def forward(self, x):
        return self.out(self.b(self.a(x)) + self.skip(x))


@MODELS.register
class ResNetSmall(nn.Module):
    def __init__(self, widths, blocks, num_classes):
        super().__init__()
        self.stem = ConvBN(3, widths[0])
        layers, cin = [], widths[0]
        for i, w in enumerate(widths):
            for j in range(blocks):
                layers.append(Block(cin, w, 2 if j == 0 and i > 0 else 1))
                cin = w
        self.stages = nn.Sequential(*layers)
        self.head = nn.Linear(cin, num_classes)

    def forward(self, images, labels=None):
        logits = self.head(self.stages(self.stem(images)).mean((2, 3)))
        if labels is None:
            return logits
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)
