"""English text that ships with Python -> a small GPT trained on it, on one process or under torchrun.

python examples/train_lm.py
torchrun --standalone --nproc-per-node 2 examples/train_lm.py
"""

import argparse
import ast
import importlib.util
import math
import os
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

DOCUMENTED_MODULES = (
    "argparse", "ast", "collections", "configparser", "contextlib", "csv", "ctypes", "dataclasses", "datetime",
    "difflib", "doctest", "email.message", "enum", "fractions", "functools", "http.client", "http.cookiejar",
    "inspect", "logging", "mailbox", "optparse", "os", "pathlib", "pickle", "pickletools", "pydoc", "random",
    "shutil", "smtplib", "socket", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap",
    "threading", "timeit", "traceback", "typing", "unittest.case", "unittest.mock", "urllib.request", "uuid",
    "zipfile",
)  # fmt: skip
WORD = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")

Pair = tuple[int, int]


def read_articles(min_characters: int = 10_000) -> list[str]:
    """The topics of Python's help() and the documentation inside its modules: the long texts among them."""
    articles = list(topics.values())
    for name in DOCUMENTED_MODULES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        docstrings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
        articles.append("\n\n".join(text for text in docstrings if text))
    return [article for article in articles if len(article) >= min_characters]


class Tokenizer:
    """Byte-pair encoding: text -> bytes, then the most frequent pair becomes a token of its own, again and again."""

    def __init__(self, text: str, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.merges: dict[Pair, int] = {}
        frequent = Counter(WORD.findall(text)).most_common(1500)
        words = [(list(word.encode()), count) for word, count in frequent]
        for token in range(256, vocabulary_size):
            pairs: Counter[Pair] = Counter()
            for ids, count in words:
                for pair in pairwise(ids):
                    pairs[pair] += count
            best = max(pairs, key=lambda pair: pairs[pair])
            self.merges[best] = token
            words = [(merge(ids, best, token), count) for ids, count in words]

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for word in WORD.findall(text):
            ids = list(word.encode())
            while len(ids) > 1:
                pair = min(pairwise(ids), key=self.merge_order)
                if pair not in self.merges:
                    break
                ids = merge(ids, pair, self.merges[pair])
            tokens.extend(ids)
        return tokens

    def merge_order(self, pair: Pair) -> float:
        """Pairs that became a token early are merged first; infinity for those that never did."""
        return self.merges.get(pair, math.inf)


def merge(ids: list[int], pair: Pair, token: int) -> list[int]:
    merged = []
    i = 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            merged.append(token)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


class Articles(Dataset):
    """Random windows of tokens; a long article is drawn more often than a short one."""

    def __init__(self, articles: list[str], tokenizer: Tokenizer, block_size: int) -> None:
        self.tokenizer = tokenizer
        self.block_size = block_size
        characters = 3 * block_size
        self.items = [article for article in articles for _ in range(len(article) // characters)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.tokenizer.encode(self.items[index])
        start = int(torch.randint(len(tokens) - self.block_size, ()))
        window = torch.tensor(tokens[start : start + self.block_size + 1])
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary_size: int, block_size: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        return self.head(self.norm(self.blocks(x)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on the English text that ships with Python.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank")
    parser.add_argument("--block-size", type=int, default=48, help="tokens per window")
    parser.add_argument("--vocabulary-size", type=int, default=1024)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    torch.manual_seed(args.seed)

    articles = read_articles()
    tokenizer = Tokenizer("".join(articles), args.vocabulary_size)
    dataset = Articles(articles, tokenizer, args.block_size)
    sampler = DistributedSampler(dataset, seed=args.seed) if distributed else RandomSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.num_workers, drop_last=True
    )

    model: nn.Module = GPT(args.vocabulary_size, args.block_size, args.width, args.layers, args.heads)
    if rank == 0:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{len(articles)} articles, {size / 1e6:.1f}M parameters", flush=True)
    if distributed:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    step, epoch = 0, 0
    started = time.perf_counter()
    while step < args.steps:
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if rank == 0 and step % args.log_every == 0:
                seconds = time.perf_counter() - started
                print(f"step {step:4d}  loss {loss.item():.3f}  {seconds / step:.2f} s/step", flush=True)
            if step == args.steps:
                break
        epoch += 1
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
