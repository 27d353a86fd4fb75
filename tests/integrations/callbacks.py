"""Callbacks for a Trainer of ``transformers``."""

from transformers import TrainerCallback

from .conftest import make_samples


class Predictor(TrainerCallback):
    """Predicts after each epoch, as a callback that shows samples does."""

    def __init__(self):
        self.outputs = []
        self.trainer = None

    def on_epoch_end(self, *_args, **_options):
        self.outputs.append(self.trainer.predict(make_samples(7)))


class Recorder(TrainerCallback):
    """Records which events a callback sees, with the step."""

    def __init__(self):
        self.seen = []

    def __getattribute__(self, name):
        if name.startswith("on_") and name != "on_pre_optimizer_step":
            return lambda args, state, control, **_: self.seen.append((name, state.global_step))
        return super().__getattribute__(name)


class BeforeOptimizer(TrainerCallback):
    def on_pre_optimizer_step(self, *_args, **_options):
        pass


class StopEpoch(TrainerCallback):
    def on_step_end(self, _args, _state, control, **_options):
        control.should_epoch_stop = True
