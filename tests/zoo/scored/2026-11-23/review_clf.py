"""Review classification with Accelerate."""
import random
import time
import unicodedata
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed

SYLLABLES = "ba be bi bo bu da de di do du ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu".split()


@dataclass
class Config:
    reviews: int = 960
    words: int = 56
    max_len: int = 120
    batch_size: int = 32
    epochs: int = 6
    dim: int = 64
    layers: int = 2
    heads: int = 4
    lr: float = 3e-4
    seed: int = 11


def make_reviews(cfg):
    rng = random.Random(cfg.seed)
    lexicon = ["".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 5))) for _ in range(3000)]
    texts, labels = [], []
    for i in range(cfg.reviews):
        label = i % 2
        half = lexicon[:1700] if label else lexicon[1300:]
        words = [rng.choice(half) for _ in range(cfg.words)]
        texts.append(" ".join(w + ("," if rng.random() < 0.1 else "") for w in words).capitalize() + ".")
        labels.append(label)
    return texts, labels


class WordPiece:
    """Greedy longest-match-first tokenizer."""

    def __init__(self):
        pieces = SYLLABLES + [a + b for a in SYLLABLES for b in SYLLABLES] + list("abcdefghijklmnopqrstuvwxyz,.")
        self.vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2}
        for piece in pieces:
            self.vocab.setdefault(piece, len(self.vocab))
            self.vocab.setdefault("##" + piece, len(self.vocab))

    def __len__(self):
        return len(self.vocab)

    def clean(self, text):
        out = []
        for ch in text:
            code = ord(ch)
            if code == 0 or code == 0xFFFD or unicodedata.category(ch) == "Cc":
                continue
            out.append(" " if ch.isspace() or unicodedata.category(ch) == "Zs" else ch)
        return "".join(out)

    def split(self, text):
        words = []
        fresh = True
        for ch in unicodedata.normalize("NFD", self.clean(text).lower()):
            cat = unicodedata.category(ch)
            if cat == "Mn":
                continue
            if ch.isspace():
                fresh = True
            elif cat.startswith("P"):
                words.append(ch)
                fresh = True
            elif fresh:
                words.append(ch)
                fresh = False
            else:
                words[-1] += ch
        return words

    def encode(self, text, max_len):
        ids = [2]
        for word in self.split(text):
            start = 0
            while start < len(word):
                end = len(word)
                while end > start:
                    piece = word[start:end] if start == 0 else "##" + word[start:end]
                    if piece in self.vocab:
                        break
                    end -= 1
                if end == start:
                    ids.append(1)
                    break
                ids.append(self.vocab[piece])
                start = end
        return ids[:max_len] + [0] * max(0, max_len - len(ids))


class Encoder(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg.dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(cfg.max_len, cfg.dim) * 0.02)
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 4 * cfg.dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.head = nn.Linear(cfg.dim, 2)

    def forward(self, ids):
        x = self.body(self.tok(ids) + self.pos)
        return self.head(x[:, 0])


def main():
    cfg = Config()
    set_seed(cfg.seed)
    torch.set_num_threads(2)
    accelerator = Accelerator(cpu=True)
    tokenizer = WordPiece()
    texts, labels = make_reviews(cfg)
    labels = torch.tensor(labels)

    model = Encoder(len(tokenizer), cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)

    t0 = time.time()
    for epoch in range(cfg.epochs):
        order = torch.randperm(len(texts)).tolist()
        running = torch.zeros(())
        steps = 0
        for start in range(0, len(order), cfg.batch_size):
            idx = order[start:start + cfg.batch_size]
            ids = torch.tensor([tokenizer.encode(texts[i], cfg.max_len) for i in idx])
            logits = model(ids)
            loss = F.cross_entropy(logits, labels[idx])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            running += loss.detach()
            steps += 1
        accelerator.print(f"epoch {epoch}: loss {running.item() / steps:.4f} ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    main()
