import random


def write_corpus(path, docs, vocab, seed):
    rng = random.Random(seed)
    with open(path, "w") as out:
        for _ in range(docs):
            topic = rng.randrange(vocab)
            words = [str(int(topic + rng.gauss(0, 300)) % vocab) for _ in range(rng.randint(12, 24))]
            out.write(" ".join(words) + "\n")


def read_documents(path, shift):
    with open(path) as fh:
        for n, line in enumerate(fh):
            yield n, [int(w) ^ shift for w in line.split()]
