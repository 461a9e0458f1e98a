# ruff: noqa
"""A timer whose handler raises every 2 ms, at any place, for 1.2 s; the script catches its own exception and goes on.
Compared: that no other exception arrives, and that a training afterwards has the same bits."""

import random, signal, time, torch
from torch.utils.data import DataLoader
from _result import net, one_step, result


class Alarm(Exception):
    pass


def ring(number, frame):
    raise Alarm


model, others, alarms = net(), set(), 0
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randn(64, 16)
one_step(model, opt, data)  # an alarm while Adam fills its state leaves it half filled, with and without hotloop
signal.signal(signal.SIGALRM, ring)
end = time.perf_counter() + 1.2
while time.perf_counter() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.002 * random.random())
        try:
            for x in DataLoader(data, batch_size=8):
                one_step(model, opt, x)
                with torch.no_grad():
                    model(x)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        alarms += 1
        torch.set_grad_enabled(True)  # the exception may have left a no_grad half way
    except Exception as error:
        others.add(type(error).__name__)
torch.set_grad_enabled(True)
torch.manual_seed(1)
random.seed(1)
model = net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for x in DataLoader(data, batch_size=8):
    loss = one_step(model, opt, x)
result(loss, model, many=alarms > 20, others=sorted(others))
