"""A made-up language: words are built of syllables, each topic prefers some of them."""
import random

ONSETS = "b d f g k l m n p r s t v z br dr kr st tr pl".split()
NUCLEI = "a e i o u ai ou ea".split()
CODAS = ["", "", "n", "r", "s", "l", "nt", "st"]


def lexicon(n, rng):
    words = set()
    while len(words) < n:
        k = rng.choice((2, 3, 3, 4))
        words.add("".join(rng.choice(ONSETS) + rng.choice(NUCLEI) + rng.choice(CODAS) for _ in range(k)))
    return sorted(words)


class Corpus:
    def __init__(self, opt):
        rng = random.Random(opt.seed)
        self.words = lexicon(opt.lexicon, rng)
        weights = [1.0 / (i + 10) for i in range(len(self.words))]
        common = self.words[:]
        rng.shuffle(common)
        topical = [rng.sample(self.words, 150) for _ in range(opt.classes)]
        self.texts, self.labels = [], []
        for _ in range(opt.documents):
            y = rng.randrange(opt.classes)
            n = rng.randint(35, 60)
            body = rng.choices(common, weights, k=n) + rng.choices(topical[y], k=n // 8)
            rng.shuffle(body)
            body[0] = body[0].capitalize()
            self.texts.append(" ".join(body) + ".")
            self.labels.append(y)

    def __len__(self):
        return len(self.texts)
