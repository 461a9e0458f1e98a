import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.ff(self.n2(x))


class TextEncoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.emb = nn.Embedding(hp.symbols, hp.width)
        self.pos = nn.Parameter(torch.randn(hp.text_max, hp.width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(hp.width, hp.heads) for _ in range(hp.layers))
        self.mean = nn.Linear(hp.width, hp.mel)
        self.duration = nn.Linear(hp.width, 1)

    def forward(self, text, text_len):
        n = text.shape[1]
        mask = (torch.arange(n) < text_len[:, None])[:, None, None, :]
        x = self.emb(text) + self.pos[:n]
        for layer in self.layers:
            x = layer(x, mask)
        return x, self.mean(x), self.duration(x).squeeze(-1)


class MelDecoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        d = hp.decoder_width
        self.inp = nn.Linear(hp.width, d)
        self.convs = nn.ModuleList(nn.Conv1d(d, d, 5, padding=2) for _ in range(hp.decoder_layers))
        self.out = nn.Linear(d, hp.mel)

    def forward(self, x):
        x = self.inp(x).transpose(1, 2)
        for conv in self.convs:
            x = x + F.gelu(conv(x))
        return self.out(x.transpose(1, 2))
