import torch
from torch import nn
import torch.nn.functional as F

from .registry import MODELS


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, ffn):
        super().__init__()
        self.heads = heads
        self.self_attn_norm, self.final_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, ffn), nn.Linear(ffn, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.in_proj(self.self_attn_norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.final_norm(x))))


class TransformerLM(nn.Module):
    def __init__(self, vocab, dim, heads, layers, ffn, max_len):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.positions = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads, ffn) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.embed.weight, std=0.05)

    def forward(self, tokens):
        x = self.embed(tokens) + self.positions[:tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed.weight)


@MODELS.register("lm_small")
def lm_small(args):
    return TransformerLM(args.tokens_vocab, 192, 4, 4, 768, args.sample_len)


@MODELS.register("lm_base")
def lm_base(args):
    return TransformerLM(args.tokens_vocab, 512, 8, 6, 2048, args.sample_len)
