import time

from transformers import TrainerCallback


class Throughput(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            dt = time.perf_counter() - self.start
            print(f"{state.global_step / dt:.2f} steps/s")

    def on_train_end(self, args, state, control, **kwargs):
        dt = time.perf_counter() - self.start
        print(f"{state.global_step} steps, {dt:.1f} s, {1000 * dt / state.global_step:.1f} ms/step")


class StopOnNan(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        loss = (logs or {}).get("loss")
        if loss is not None and float(loss) != float(loss):
            control.should_training_stop = True
