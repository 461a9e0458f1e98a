import torch

from .registry import CRITERIONS, MODELS, TASKS


class Task:
    def __init__(self, args):
        self.args = args

    def build_model(self):
        return MODELS.build(self.args.arch, self.args)

    def build_criterion(self):
        return CRITERIONS.build(self.args.criterion, self.args)

    def train_step(self, sample, model, criterion, scale):
        loss, log = criterion(model, sample)
        (loss * scale).backward()
        return log

    @torch.inference_mode()
    def valid_step(self, sample, model, criterion):
        return criterion(model, sample)[1]


@TASKS.register("causal_lm")
class CausalLM(Task):
    """Token blocks cut out of one long stream, a first-order Markov source."""

    def load_dataset(self):
        a = self.args
        g = torch.Generator().manual_seed(a.seed)
        successors = torch.randint(a.tokens_vocab, (a.tokens_vocab, 8), generator=g)
        lanes, steps = 512, 400
        cur = torch.randint(a.tokens_vocab, (lanes,), generator=g)
        rows = [cur]
        for _ in range(steps - 1):
            cur = successors[cur, torch.randint(8, (lanes,), generator=g)]
            rows.append(cur)
        lanes = torch.stack(rows, 1)
        self.stream, self.valid_stream = lanes[:-48].flatten(), lanes[-48:].flatten()

    def valid_batches(self, rank, world, per_batch=16):
        a = self.args
        starts = torch.arange(a.valid_sentences)[rank::world] * a.sample_len
        offsets = torch.arange(a.sample_len + 1)
        for chunk in starts.split(per_batch):
            block = self.valid_stream[chunk[:, None] + offsets]
            yield {"input": block[:, :-1], "target": block[:, 1:]}

    def iterator(self, rank, world):
        a = self.args
        n = (len(self.stream) - 1) // a.sample_len
        starts = torch.arange(n) * a.sample_len
        offsets = torch.arange(a.sample_len + 1)
        epoch = 0
        while True:
            g = torch.Generator().manual_seed(a.seed + epoch)
            order = starts[torch.randperm(n, generator=g)][rank::world]
            for chunk in order.split(a.sentences):
                if len(chunk) == a.sentences and chunk.max() + a.sample_len < len(self.stream):
                    block = self.stream[chunk[:, None] + offsets]
                    yield {"input": block[:, :-1], "target": block[:, 1:]}
            epoch += 1
