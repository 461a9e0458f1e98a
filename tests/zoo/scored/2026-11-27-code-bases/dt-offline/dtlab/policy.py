import torch
import torch.nn.functional as F
from torch import nn


class CausalBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_a, self.ln_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.ln_a(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.ln_b(x))


class DecisionTransformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.time = nn.Embedding(c.episode_len, c.width)
        self.togo, self.state = nn.Linear(1, c.width), nn.Linear(c.state_dim, c.width)
        self.action = nn.Linear(c.act_dim, c.width)
        self.norm_in = nn.LayerNorm(c.width)
        self.blocks = nn.Sequential(*(CausalBlock(c.width, c.heads) for _ in range(c.layers)))
        self.norm_out = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.act_dim)

    def forward(self, togo, state, action, at):
        b, t, _ = state.shape
        when = self.time(at)
        tokens = torch.stack([self.togo(togo) + when, self.state(state) + when, self.action(action) + when], dim=2)
        x = self.blocks(self.norm_in(tokens.view(b, 3 * t, -1)))
        x = self.norm_out(x.view(b, t, 3, -1)[:, :, 1])
        return torch.tanh(self.head(x))
