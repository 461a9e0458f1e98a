"""preprocess-in-workers: move work from the loop body into a data set or `collate_fn`, which workers run."""

from hotloop.core.acts import Act
from hotloop.core.findings import Numerics


class PreprocessInWorkers(Act):
    """
    Move the work from the loop body into `__getitem__` or `collate_fn`, and give the DataLoader `num_workers`. Random
    draws then come from the workers' generators. Advised by `preprocessing-in-loop`.
    """

    id = "preprocess-in-workers"
    summary = "move work from the loop body into the dataset or `collate_fn`, which workers run"
    effort = "medium"
    numerics = Numerics.RESAMPLED


ACT = PreprocessInWorkers()
