import torch.distributed as dist


class PairMiner:
    """The two middle ranks share hard negatives; the period shrinks once the run is warm."""

    def __init__(self, rank, period=20, warm=45):
        self.members = [1, 2]
        self.group = dist.new_group(self.members)
        self.rank = rank
        self.period, self.warm = period, warm
        self.hard = []

    def due(self, step):
        if self.rank not in self.members:
            return False
        if step > self.warm and self.rank == min(self.members):
            self.period = 25
        return step % self.period == 0

    def exchange(self, rows, distance):
        if self.period == 25:
            print("\nREADY\n", end="", flush=True)
        mine = [rows[i].clone() for i in distance.argsort()[:6]]
        both = [None] * len(self.members)
        dist.all_gather_object(both, mine, group=self.group)
        self.hard = [r for part in both for r in part]
