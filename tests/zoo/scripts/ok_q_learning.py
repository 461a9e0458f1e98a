"""Q-learning on a random walk with a replay memory and a target network."""

import argparse
import copy
import random

import torch
import torch.nn.functional as F
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=250)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(0)

    q = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))
    target = copy.deepcopy(q).requires_grad_(False)
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-3, fused=True)
    size = 10_000
    states, nexts = torch.zeros(size, 16), torch.zeros(size, 16)
    actions, rewards = torch.zeros(size, dtype=torch.long), torch.zeros(size)
    state, filled = torch.randn(16), 0
    for update in range(args.steps):
        for _ in range(8):
            if rng.random() < 0.1:
                action = rng.randrange(4)
            else:
                with torch.no_grad():
                    action = int(q(state).argmax())
            following = 0.9 * state + 0.1 * torch.randn(16)
            following[action] += 0.2
            slot = filled % size
            states[slot], nexts[slot], actions[slot] = state, following, action
            rewards[slot] = -following.square().mean()
            state, filled = following, filled + 1
        pick = torch.randint(0, min(filled, size), (256,))
        with torch.no_grad():
            goal = rewards[pick] + 0.98 * target(nexts[pick]).max(1).values
        value = q(states[pick]).gather(1, actions[pick, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 50 == 0:
            target.load_state_dict(q.state_dict())
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
