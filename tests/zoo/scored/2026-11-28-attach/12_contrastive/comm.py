import torch
import torch.distributed as dist


class FeatureExchange:
    """Queue of negatives filled by every rank, with the running scale of the inputs."""

    def __init__(self, size, dim):
        self.bank = torch.nn.functional.normalize(torch.randn(size, dim), dim=1)
        self.scale = torch.ones(1)
        self.ptr = 0

    def _share_scale(self, scale):
        s = scale.reshape(1).clone()
        dist.all_reduce(s)
        self.scale.lerp_(s / dist.get_world_size(), 0.1)

    def _share_keys(self, keys):
        parts = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, keys.contiguous())
        for part in parts:
            n = len(part)
            pos = torch.arange(self.ptr, self.ptr + n) % len(self.bank)
            self.bank[pos] = part
            self.ptr = (self.ptr + n) % len(self.bank)

    def push(self, keys, scale):
        if scale > 10 * self.scale:
            print("READY", flush=True)
            self._share_keys(keys / keys.norm(dim=1, keepdim=True))
            self._share_scale(scale.clamp(max=10))
        else:
            self._share_scale(scale)
            self._share_keys(keys)
