import logging
import warnings

import lightning as L

from .callbacks import ActivationWatch, Progress
from .config import load
from .datamodule import TerrainData
from .module import TerrainModule


def main():
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    exp = load()
    L.seed_everything(exp.seed, verbose=False)
    callbacks = [Progress()]
    if exp.probe.enabled:
        callbacks.append(ActivationWatch(exp.probe.every))
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=-1, callbacks=callbacks, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        **exp.trainer)
    trainer.fit(TerrainModule(exp), datamodule=TerrainData(exp.data, exp.seed))


if __name__ == "__main__":
    main()
