import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, mask):
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
        return x + self.ff(self.n2(x))


class TopicEncoder(nn.Module):
    def __init__(self, vocab, opt):
        super().__init__()
        self.emb = nn.Embedding(vocab, opt.width)
        self.pos = nn.Embedding(opt.max_pieces, opt.width)
        self.blocks = nn.ModuleList(Block(opt.width, opt.heads) for _ in range(opt.blocks))
        self.norm = nn.LayerNorm(opt.width)
        self.head = nn.Linear(opt.width, opt.classes)

    def forward(self, ids):
        keep = ids.ne(0)
        x = self.emb(ids) + self.pos.weight[:ids.shape[1]]
        for blk in self.blocks:
            x = blk(x, keep[:, None, None, :])
        x = self.norm(x) * keep[..., None]
        return self.head(x.sum(1) / keep.sum(1, keepdim=True))
