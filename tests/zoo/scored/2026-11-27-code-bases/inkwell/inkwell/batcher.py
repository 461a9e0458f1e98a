"""Batches of similar length, prepared ahead by a background thread."""
import queue
import random
import threading

import torch


class Batcher:
    def __init__(self, corpus, tokenizer, opt):
        self.corpus, self.tok, self.opt = corpus, tokenizer, opt
        self.rng = random.Random(opt.seed + 1)
        self.encoded = None
        if opt.keep_encodings:
            self.encoded = [tokenizer.encode(t, opt.max_pieces) for t in corpus.texts]

    def __len__(self):
        return len(self.corpus) // self.opt.batch_docs

    def ids(self, i):
        if self.encoded is not None:
            return self.encoded[i]
        return self.tok.encode(self.corpus.texts[i], self.opt.max_pieces)

    def collate(self, rows):
        seqs = [self.ids(i) for i in rows]
        width = max(map(len, seqs))
        block = torch.zeros(len(seqs), width, dtype=torch.long)
        for r, s in enumerate(seqs):
            block[r, :len(s)] = torch.tensor(s)
        return block, torch.tensor([self.corpus.labels[i] for i in rows])

    def plan(self):
        order = list(range(len(self.corpus)))
        self.rng.shuffle(order)
        b, span = self.opt.batch_docs, self.opt.batch_docs * self.opt.bucket
        groups = []
        for s in range(0, len(order), span):
            near = sorted(order[s:s + span], key=lambda i: len(self.corpus.texts[i]))
            groups += [near[j:j + b] for j in range(0, len(near) - b + 1, b)]
        self.rng.shuffle(groups)
        return groups

    def _fill(self, groups, q):
        for rows in groups:
            q.put(self.collate(rows))
        q.put(None)

    def __iter__(self):
        q = queue.Queue(maxsize=self.opt.queue_depth)
        threading.Thread(target=self._fill, args=(self.plan(), q), daemon=True).start()
        while True:
            item = q.get()
            if item is None:
                return
            yield item
