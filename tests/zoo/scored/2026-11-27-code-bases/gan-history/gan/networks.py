from torch import nn


def up(cin, cout):
    return nn.Sequential(nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


def down(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 4, 2, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2))


class Generator(nn.Module):
    def __init__(self, latent, w):
        super().__init__()
        self.w = w
        self.fc = nn.Linear(latent, 4 * w * 16)
        self.body = nn.Sequential(up(4 * w, 2 * w), up(2 * w, w), nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh())

    def forward(self, z):
        return self.body(self.fc(z).view(-1, 4 * self.w, 4, 4))


class Critic(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2), down(w, 2 * w), down(2 * w, 4 * w))
        self.out = nn.Linear(4 * w * 16, 1)

    def forward(self, x):
        return self.out(self.body(x).flatten(1)).squeeze(1)
