"""Character LSTM with truncated BPTT over parallel text streams."""
import random
import time

import torch
import torch.nn as nn

HP = {"hidden": 160, "embed": 48, "layers": 2, "streams": 16, "bptt": 40, "windows": 360,
      "lr": 2e-3, "clip": 1.0, "seed": 23}


def recipe_text(n, rng):
    verbs = ["mix", "bake", "chop", "boil", "fry", "stir", "cool"]
    foods = ["flour", "butter", "onions", "rice", "eggs", "lemon", "beans", "sugar"]
    tools = ["pan", "bowl", "oven", "pot"]
    parts = []
    for i in range(n):
        parts.append(f"{rng.choice(verbs)} {rng.randrange(1, 9)} cups of {rng.choice(foods)} "
                     f"and {rng.choice(foods)} in the {rng.choice(tools)} "
                     f"for {rng.randrange(5, 60)} minutes.\n")
    return "".join(parts)


class CharLSTM(nn.Module):
    def __init__(self, vocab, embed, hidden, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        self.rnn = nn.LSTM(embed, hidden, layers)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids, state):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h), state


def windows(streams, bptt, count):
    length = streams.shape[0]
    pos = 0
    for _ in range(count):
        if pos + bptt + 1 > length:
            pos = 0
        yield pos == 0, streams[pos:pos + bptt], streams[pos + 1:pos + bptt + 1]
        pos += bptt


@torch.no_grad()
def generate(model, stoi, itos, prompt, n):
    state, out = None, list(prompt)
    ids = torch.tensor([[stoi[c]] for c in prompt])
    for _ in range(n):
        logits, state = model(ids, state)
        nxt = torch.distributions.Categorical(logits=logits[-1, 0] / 0.7).sample()
        out.append(itos[nxt.item()])
        ids = nxt.view(1, 1)
    return "".join(out)


class Meter:
    """Running statistics of the training loss."""

    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    def mean(self, last=25):
        tail = self.values[-last:]
        return sum(float(v) for v in tail) / len(tail)

    def best(self):
        return min(float(v) for v in self.values)


def main():
    rng = random.Random(HP["seed"])
    torch.manual_seed(HP["seed"])
    text = recipe_text(6000, rng)
    itos = sorted(set(text))
    stoi = {c: i for i, c in enumerate(itos)}
    ids = torch.tensor([stoi[c] for c in text])
    per = len(ids) // HP["streams"]
    streams = ids[:per * HP["streams"]].view(HP["streams"], per).t().contiguous()

    model = CharLSTM(len(itos), HP["embed"], HP["hidden"], HP["layers"])
    optimizer = torch.optim.Adam(model.parameters(), lr=HP["lr"], fused=True)
    criterion = nn.CrossEntropyLoss()
    meter, state, t0 = Meter(), None, time.time()
    for i, (restart, x, y) in enumerate(windows(streams, HP["bptt"], HP["windows"])):
        if restart:
            state = None
        if state is not None:
            state = tuple(s.detach() for s in state)
        logits, state = model(x, state)
        loss = criterion(logits.flatten(0, 1), y.flatten())
        perplexity = loss.exp()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), HP["clip"])
        optimizer.step()
        meter.add(perplexity)
        if (i + 1) % 25 == 0:
            print(f"window {i + 1} ppl {meter.mean():.3f} best {meter.best():.3f} "
                  f"{time.time() - t0:.1f}s", flush=True)
    print(generate(model, stoi, itos, "mix ", 60).strip())


if __name__ == "__main__":
    main()
