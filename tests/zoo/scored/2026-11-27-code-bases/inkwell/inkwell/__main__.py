import time

import torch

from .batcher import Batcher
from .corpus import Corpus
from .encoder import TopicEncoder
from .engine import Engine
from .options import options
from .tokenizer import PairTokenizer


def main():
    opt = options()
    torch.manual_seed(opt.seed)
    corpus = Corpus(opt)
    tok = PairTokenizer.learn(corpus.texts[:400], opt.pieces)
    batches = Batcher(corpus, tok, opt)
    engine = Engine(TopicEncoder(len(tok), opt), opt, opt.passes * len(batches) + 1)
    window = {"hit": torch.zeros(()), "n": 0}

    @engine.on("step")
    def count(engine, loss, logits, labels):
        window["hit"] += (logits.argmax(1) == labels).sum()
        window["n"] += len(labels)

    @engine.on("pass")
    def report(engine, number):
        print(f"pass {number}: accuracy {window['hit'].item() / window['n']:.3f} "
              f"{time.perf_counter() - engine.started:.1f}s", flush=True)
        window["hit"].zero_()
        window["n"] = 0

    @engine.on("finish")
    def bye(engine):
        print(f"{engine.step} steps in {time.perf_counter() - engine.started:.2f}s", flush=True)

    engine.fit(batches, opt.passes)


if __name__ == "__main__":
    main()
