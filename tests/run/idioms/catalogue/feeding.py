"""Data, evaluation and models of other libraries."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from elastane import Run

from .registry import register_exact, register_refused
from .samples import CLASSES, LENGTH, TOKENS, VECTORS, WORDS


class Reviews(Dataset[dict[str, torch.Tensor]]):
    """Samples are dicts."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        vector, label = VECTORS[index]
        return {"vector": vector, "words": TOKENS[index][0], "labels": label}


class TwoInputs(nn.Module):
    """Takes numbers and words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(WORDS, 8), nn.Linear(14, CLASSES)

    def forward(self, vector: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([vector, self.words(words)], dim=1))


@register_exact("Batches that are dicts, models with several inputs")
def dict_batches(run: Run) -> None:
    """The script takes the parts of a batch by name."""
    model = TwoInputs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(Reviews(), global_batch=8, microbatch=2, until=12):
        for batch in step:
            labels = batch.pop("labels")
            step.backward(functional.cross_entropy(model(**batch), labels))


def order_by_difficulty(epoch: int) -> list[int]:
    """Return the samples with small numbers first; later epochs mix them more."""
    generator = torch.Generator().manual_seed(epoch)
    noise = torch.rand(LENGTH, generator=generator) * epoch
    return (VECTORS.tensors[0].abs().sum(1) + noise).argsort().tolist()


@register_exact("Easy samples first", note="Pass `order`; an epoch still reads each sample once.", shown=True)
def easy_first(run: Run) -> None:
    """The script reads easy samples before difficult ones."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12, order=order_by_difficulty):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


def pad_samples(samples: list[tuple[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of different lengths, filled up with zeros, and their lengths."""
    sequences = [words[: 4 + int(words[0]) % 8] for (words,) in samples]
    lengths = torch.tensor([len(words) for words in sequences])
    return nn.utils.rnn.pad_sequence(sequences, batch_first=True), lengths


@register_exact("Sequences of different lengths", note="Pass `collate`.", shown=True)
def different_lengths(run: Run) -> None:
    """A function pads the sequences of a microbatch, and padding does not count."""
    model = nn.Sequential(nn.Embedding(WORDS, 8, padding_idx=0), nn.Linear(8, WORDS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(TOKENS, global_batch=8, microbatch=2, until=12, collate=pad_samples):
        for words, lengths in step:
            logits = model(words[:, :-1]).flatten(0, 1)
            total = functional.cross_entropy(logits, words[:, 1:].flatten(), ignore_index=0, reduction="sum")
            step.backward(total, weight=(lengths - 1).sum())


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with noise of three generators."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        vector, label = VECTORS[index]
        noise = torch.randn(6) + random.random() + torch.from_numpy(np.random.rand(6)).float()
        return vector + 0.1 * noise, label


@register_exact("Random augmentation in the dataset", note="It is exact with and without loader processes.")
def augmentation(run: Run) -> None:
    """The dataset draws from the global generators of torch, NumPy and Python."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(Augmented(), global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("A short last step of an epoch")
def short_last_step(run: Run) -> None:
    """The dataset's length is not a multiple of the batch; the last step of each epoch is smaller."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    few = torch.utils.data.Subset(VECTORS, range(21))
    for step in run.steps(few, global_batch=8, microbatch=2, until="4 epochs"):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Reads its samples in order; its state is where it stands."""

    def __init__(self, begin: int = 0, stride: int = 1) -> None:
        self.begin, self.stride, self.place = begin, stride, 0

    def shard(self, index: int, count: int) -> "Stream":
        return Stream(self.begin + index * self.stride, self.stride * count)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while (index := self.begin + self.place * self.stride) < LENGTH:
            self.place += 1
            yield VECTORS[index]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


@register_exact("A stream with a state", note="The stream has a method `shard` and a state.", shown=True)
def stream(run: Run) -> None:
    """Each virtual rank reads a shard; a worker that takes over a virtual rank continues the shard."""
    model = nn.Linear(6, CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(Stream(), global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


class Endless(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """A stream without a state."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from (VECTORS[index] for index in range(LENGTH))


@register_refused(
    "A stream without a state",
    "cannot be resumed",
    instead="Give it `state_dict` and `load_state_dict`, or pass `replay=True`.",
)
def stream_without_state(run: Run) -> None:
    """The dataset is an `IterableDataset` that can only be read from its beginning."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in run.steps(Endless(), global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "A `DataLoader`",
    "loader.dataset",
    instead="Pass the dataset; `run.steps` shuffles, batches and loads ahead (`loaders=`).",
)
def data_loader(run: Run) -> None:
    """The script passes a `DataLoader` instead of the dataset."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = DataLoader(VECTORS, batch_size=8, shuffle=True)
    for step in run.steps(loader, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_refused(
    "Data that is not a dataset",
    "run.steps was given",
    instead="Pass a dataset with `__len__` and `__getitem__`: the split, the samples, a `TensorDataset`.",
    variants=("iterator", "generator", "splits", "path", "columns"),
)
def no_dataset(run: Run, kind: str) -> None:
    """The script passes an iterator, a generator, several splits, a path or columns."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = {
        "iterator": iter(DataLoader(VECTORS)),
        "generator": (sample for sample in VECTORS),
        "splits": {"train": VECTORS, "test": VECTORS},
        "path": "train.csv",
        "columns": VECTORS.tensors,
    }
    for step in run.steps(data[kind], global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Values logged with `run.log`", note="Each step of the ledger has them once.", shown=True)
def logged_values(run: Run) -> None:
    """The script logs the accuracy of each microbatch, and between steps the size of the weights."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            outputs = model(inputs)
            step.backward(functional.cross_entropy(outputs, targets))
            run.log(accuracy=(outputs.argmax(1) == targets).float().mean())
        run.log(weights=sum(parameter.detach().norm() for parameter in model.parameters()))


@register_refused(
    "A loop over epochs",
    "steps was called twice",
    instead='Write one loop with `until="2 epochs"`; `step.epoch` is the number of the epoch.',
)
def loop_over_epochs(run: Run) -> None:
    """The script has a loop over epochs around the loop over steps."""
    model = nn.Linear(6, CLASSES)
    model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _epoch in range(2):
        for step in run.steps(VECTORS, global_batch=8, microbatch=2, until="1 epoch"):
            for inputs, targets in step:
                step.backward(functional.cross_entropy(model(inputs), targets))


@register_exact("Evaluation between steps", shown=True)
def evaluation(run: Run) -> None:
    """After every fourth step, the workers share an evaluation, and its result sets the learning rate."""
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(VECTORS, global_batch=8, microbatch=2, until=12):
        for inputs, targets in step:
            step.backward(functional.cross_entropy(model(inputs), targets))
        if step.number % 4 == 0:
            model.eval()
            score = run.evaluate(VECTORS, microbatch=12)
            with torch.no_grad():
                for inputs, targets in score:
                    score.add(right=(model(inputs).argmax(1) == targets).sum(), seen=len(targets))
            model.train()
            run.print("right", score.sums["right"] / score.sums["seen"])
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - score.sums["right"] / score.sums["seen"])


@register_exact(
    "A vocabulary made from a `set`",
    note="A run fixes the hashes of strings; plain `python` needs `PYTHONHASHSEED=0` for the same order.",
    of_process=True,
)
def vocabulary(run: Run) -> None:
    """The script numbers words in the order of a set of strings."""
    texts = [" ".join(f"word{word}" for word in words.tolist()) for (words,) in TOKENS]
    numbers = {word: number for number, word in enumerate({word for text in texts for word in text.split()})}
    samples = torch.tensor([[numbers[word] for word in text.split()] for text in texts])
    model = nn.Sequential(nn.EmbeddingBag(len(numbers), 8), nn.Linear(8, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(samples, global_batch=8, microbatch=2, until=12):
        for words in step:
            step.backward(functional.cross_entropy(model(words), words[:, 0] % CLASSES))
    run.print("first", min(numbers, key=numbers.__getitem__))


class Texts(Dataset[dict[str, torch.Tensor]]):
    """As a tokenizer and a collator leave them."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        (words,) = TOKENS[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


@register_exact(
    "Models of `transformers`",
    variants=("gpt2", "llama", "bert"),
    note="The model computes its own loss.",
)
def transformers(run: Run, kind: str) -> None:
    """The script trains GPT-2, Llama or BERT, from a configuration, on batches that are dicts."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, intermediate_size=32, max_position_embeddings=16)
    factory = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    model = factory.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(Texts(), global_batch=8, microbatch=2, until=12):
        for batch in step:
            step.backward(model(**batch).loss)


@register_exact("Gradient checkpointing of `transformers`")
def transformers_checkpointed(run: Run) -> None:
    """The script calls `gradient_checkpointing_enable()` before the training."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2))
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.prepare(model, optimizer)
    for step in run.steps(Texts(), global_batch=8, microbatch=2, until=12):
        for batch in step:
            step.backward(model(**batch).loss)
