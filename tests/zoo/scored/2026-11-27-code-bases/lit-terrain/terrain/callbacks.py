import time

import lightning as L

from .probes import ActivationProbe


class ActivationWatch(L.Callback):
    def __init__(self, every):
        self.every = every

    def on_fit_start(self, trainer, pl_module):
        self.probe = ActivationProbe(pl_module.net, self.every)

    def on_train_epoch_end(self, trainer, pl_module):
        bad = self.probe.alarms()
        if bad:
            print(f"check activations of: {', '.join(bad[:4])}", flush=True)

    def on_fit_end(self, trainer, pl_module):
        self.probe.close()


class Progress(L.Callback):
    def __init__(self, every=25):
        self.every = every

    def on_train_start(self, trainer, pl_module):
        self.t0 = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            print(f"step {trainer.global_step} loss {outputs['loss'].item():.3f} "
                  f"{time.perf_counter() - self.t0:.1f}s", flush=True)

    def on_train_end(self, trainer, pl_module):
        print(f"{trainer.global_step} steps in {time.perf_counter() - self.t0:.2f}s", flush=True)
