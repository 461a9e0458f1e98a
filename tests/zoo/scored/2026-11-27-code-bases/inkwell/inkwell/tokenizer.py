"""Byte-pair encoding in plain Python, learned from the training text."""
import re
import unicodedata
from collections import Counter


def merge(symbols, pair):
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


class PairTokenizer:
    PAD, UNK, CLS = 0, 1, 2

    def __init__(self, merges, alphabet):
        self.ranks = {p: r for r, p in enumerate(merges)}
        symbols = sorted(alphabet) + [a + b for a, b in merges]
        self.vocab = {s: i + 3 for i, s in enumerate(dict.fromkeys(symbols))}
        self.splitter = re.compile(r"\w+|[^\w\s]")

    @classmethod
    def learn(cls, texts, size, per_round=60):
        """Takes the `per_round` most frequent pairs at a time, close enough to one at a time."""
        counts = Counter(w for t in texts for w in t.lower().rstrip(".").split())
        words = {w: list(w[:-1]) + [w[-1] + "</w>"] for w in counts}
        alphabet = {s for w in words.values() for s in w} | {".</w>"}
        merges = []
        while len(merges) < size:
            pairs = Counter()
            for w, sym in words.items():
                for p in zip(sym, sym[1:]):
                    pairs[p] += counts[w]
            best = [p for p, _ in pairs.most_common(per_round)]
            if not best:
                break
            merges += best
            chosen = set(best)
            for w, sym in words.items():
                out, i = [], 0
                while i < len(sym):
                    if i + 1 < len(sym) and (sym[i], sym[i + 1]) in chosen:
                        out.append(sym[i] + sym[i + 1])
                        i += 2
                    else:
                        out.append(sym[i])
                        i += 1
                words[w] = out
        return cls(merges[:size], alphabet)

    def __len__(self):
        return len(self.vocab) + 3

    def normalise(self, text):
        text = unicodedata.normalize("NFKD", text.lower())
        return "".join(c for c in text if not unicodedata.combining(c) and unicodedata.category(c) != "Cc")

    def split_word(self, word):
        symbols = list(word[:-1]) + [word[-1] + "</w>"]
        while len(symbols) > 1:
            pair = min(zip(symbols, symbols[1:]), key=lambda p: self.ranks.get(p, 1 << 30))
            if pair not in self.ranks:
                break
            symbols = merge(symbols, pair)
        return [self.vocab.get(s, self.UNK) for s in symbols]

    def encode(self, text, limit):
        ids = [self.CLS]
        for word in self.splitter.findall(self.normalise(text)):
            ids.extend(self.split_word(word))
        return ids[:limit]
