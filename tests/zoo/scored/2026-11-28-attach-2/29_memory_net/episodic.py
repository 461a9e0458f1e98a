import torch


class EpisodicMemory:
    def __init__(self, classes, k=50):
        self.keys, self.labels = [], []
        self.classes, self.k = classes, k

    def remember(self, z, y):
        self.keys.append(z.clone())
        self.labels.append(y)

    def vote(self, z):
        if not self.keys:
            return torch.zeros(len(z), self.classes)
        bank, labels = torch.cat(self.keys), torch.cat(self.labels)
        out = []
        for rows in z.split(8):
            sim = rows @ bank.T
            order = sim.argsort(dim=1, descending=True)
            near = labels[order[:, :self.k]]
            out.append(torch.nn.functional.one_hot(near, self.classes).float().mean(1))
        return torch.cat(out)
