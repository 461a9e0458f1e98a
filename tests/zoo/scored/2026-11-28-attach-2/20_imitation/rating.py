import signal

import torch


class Board:
    def __init__(self, ctx=None, parts=None):
        self.ctx = ctx
        if parts is None:
            parts = (ctx.Condition(), ctx.Value("i", 0), ctx.Value("d", 0.0), ctx.Event())
        self.turn, self.version, self.score, self.up = parts

    def pack(self):
        return self.turn, self.version, self.score, self.up


def full_report(net, rows):
    """Every 8th version gets a bigger sample."""
    worst = []
    for _ in range(rows):
        s = torch.randn(2000, 10)
        with torch.no_grad():
            worst.append(net(s).softmax(1).max(1).values.min().item())
    return min(worst)


def agreement(net):
    s = torch.randn(500, 10)
    with torch.no_grad():
        return (net(s).argmax(1) == (s[:, :3] + 0.5 * s[:, 3:6]).argmax(1)).float().mean().item()


def rater(parts, net):
    signal.alarm(580)
    torch.set_num_threads(1)
    board = Board(parts=parts)
    board.turn.acquire()
    board.up.set()
    while True:
        board.turn.wait()
        board.score.value = agreement(net)
        board.turn.notify_all()
        if board.version.value % 8 == 0:
            board.turn.release()
            full_report(net, 2000)
            board.turn.acquire()
