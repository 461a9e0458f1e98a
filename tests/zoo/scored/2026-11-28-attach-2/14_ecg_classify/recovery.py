import copy

import torch.distributed as dist


class Recovery:
    def __init__(self, net):
        self.net = net
        self.good = copy.deepcopy(net.state_dict())

    def remember(self, net):
        self.good = copy.deepcopy(net.state_dict())

    def rewind(self, step, reason):
        print(f"rank {dist.get_rank()}: {reason} at step {step}, back to the last good state", flush=True)
        self.net.load_state_dict(self.good)
        print("\nREADY\n", end="", flush=True)
        dist.barrier()
