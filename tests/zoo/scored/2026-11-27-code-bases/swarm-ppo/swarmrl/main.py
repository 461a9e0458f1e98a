import time

import numpy as np
import torch

from .collector import Collector
from .normalise import NORMALISERS
from .policy import ActorCritic
from .ppo import PPO
from .pursuit import PursuitVecEnv
from .settings import read_settings


def main():
    cfg = read_settings()
    torch.manual_seed(cfg.seed)
    np.random.seed(cfg.seed)
    env = PursuitVecEnv(cfg.env.num_envs, cfg.env.episode_len, cfg.env.neighbours, cfg.seed)
    policy = ActorCritic(env.obs_dim, env.act_dim, cfg.policy.hidden, cfg.policy.layers)
    collector = Collector(env, policy, NORMALISERS[cfg.normaliser](env.obs_dim), cfg)
    learner = PPO(policy, cfg)
    begin = time.perf_counter()
    for u in range(1, cfg.updates + 1):
        data = collector.collect()
        loss = learner.learn(data)
        if u % 5 == 0:
            print(f"update {u:3d} loss {loss.item():8.3f} reward {data['rew'].mean().item():7.3f} "
                  f"{time.perf_counter() - begin:.1f}s", flush=True)
    print(f"finished {learner.updates_done} optimizer steps in {time.perf_counter() - begin:.2f}s", flush=True)


if __name__ == "__main__":
    main()
