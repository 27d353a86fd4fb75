"""A tiny model and its data, and the same training by a Trainer of ``transformers`` and by ours."""

import warnings
from collections.abc import Iterator
from importlib import import_module

import msgspec
import pytest
import torch

from elastane.run.worker import session, worker_settings
from tests.lazy_modules import LazyModule

transformers = LazyModule("transformers")

OF_ONE_PROCESS = ("_runtime", "_per_second")


@pytest.fixture(scope="session")
def libraries() -> None:
    """Import the libraries before `frozen_heap`, so that no run looks through their objects."""
    import_module("elastane.integrations.transformers")


@pytest.fixture(autouse=True)
def quiet_libraries(frozen_heap: None) -> Iterator[None]:
    """Use one thread, as a run does, and let other libraries warn."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def choose_virtual_ranks(monkeypatch):
    """Return a function that sets the virtual ranks of the next run of this process; None: the usual ones."""

    def choose(virtual_ranks):
        settings = worker_settings.get_settings()
        spec = msgspec.structs.replace(settings.spec, virtual_ranks=virtual_ranks)
        monkeypatch.setattr(worker_settings, "_settings", msgspec.structs.replace(settings, spec=spec))
        # An earlier test may have joined without training; that run has other settings.
        monkeypatch.setattr(session, "_run", None)

    return choose


@pytest.fixture
def two_processes(monkeypatch):
    """Let this process be one of two of a worker, as far as its settings say."""
    settings = worker_settings.get_settings()
    spec = msgspec.structs.replace(settings.spec, processes=2)
    monkeypatch.setattr(worker_settings, "_settings", msgspec.structs.replace(settings, spec=spec))
    monkeypatch.setattr(session, "_run", None)


@pytest.fixture
def make_trainer(tmp_path):
    """Return a function that builds a Trainer of a class: of a tiny Llama on 22 samples."""

    def make(
        trainer_class,
        *,
        callbacks=(),
        compute_metrics=None,
        train_dataset=None,
        config=None,
        more=None,
        **arguments,
    ):
        transformers.set_seed(3)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=64, max_position_embeddings=64, **sizes, **heads, **(config or {})
            )
        )
        samples = make_samples(22)
        common = {
            "output_dir": str(tmp_path / trainer_class.__name__),
            "per_device_train_batch_size": 4,
            "num_train_epochs": 2,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
        }
        return trainer_class(
            model=model,
            args=transformers.TrainingArguments(**(common | arguments)),
            train_dataset=samples if train_dataset is None else train_dataset,
            callbacks=list(callbacks),
            compute_metrics=compute_metrics,
            **({"eval_dataset": samples[:10]} | (more or {})),
        )

    return make


def make_samples(count):
    generator = torch.Generator().manual_seed(0)
    samples = []
    for number in range(count):
        tokens = torch.randint(0, 64, (12,), generator=generator)
        labels = tokens.clone()
        labels[: number % 5] = -100
        samples.append({"input_ids": tokens, "labels": labels})
    return samples


def read_history(trainer):
    """Return the logs of a Trainer without times, and without the norm, which a run sums in fp64."""
    return [
        {
            name: value
            for name, value in entry.items()
            if not name.endswith(OF_ONE_PROCESS) and name != "grad_norm"
        }
        for entry in trainer.state.log_history
    ]


def read_norms(trainer):
    return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]


def read_weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_equal_training(theirs, ours):
    """Assert that two trained Trainers have the same logs and weights, bit for bit."""
    assert read_history(ours) == read_history(theirs)
    assert read_norms(ours) == pytest.approx(read_norms(theirs), rel=1e-5)
    expected = read_weights(theirs)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in read_weights(ours).items())
