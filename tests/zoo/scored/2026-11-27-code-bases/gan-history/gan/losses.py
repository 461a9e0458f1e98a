import torch.nn.functional as F

LOSSES = {}


def loss(name):
    def deco(fn):
        LOSSES[name] = fn
        return fn
    return deco


@loss("critic")
def critic_hinge(real, fake):
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


@loss("generator")
def generator_hinge(fake):
    return -fake.mean()
