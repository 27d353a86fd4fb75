"""A checkpoint without its script is enough to export its model and to rehearse its restore."""

import json

import msgspec
import pytest
import torch
from torch import nn

from elastane.common.errors import BadInput, Damaged
from elastane.run.checkpoints.catalog import Catalog
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.nouns.checkpoints import Manifest, format_checkpoint_name, format_part_name
from elastane.run.nouns.rundir import RunDir
from elastane.run.worker.checkpoints.checkpoint_export import read_trained_model
from elastane.run.worker.checkpoints.model_description import KEY, describe_model
from elastane.run.worker.checkpoints.part_encoding import EncodedPart
from elastane.run.worker.checkpoints.publisher import publish_checkpoint
from elastane.run.worker.checkpoints.reader import CheckpointReader
from elastane.run.worker.checkpoints.state_slices import collect_scalars, list_slices
from elastane.run.worker.export import export_model
from elastane.run.worker.finished.adapters import describe_adapter
from elastane.run.worker.finished.model_writer import write_finished
from elastane.run.worker.finished.named_tensors import read_state_dict
from elastane.run.worker.finished.optimizer_state import read_optimizer_state
from elastane.run.worker.restore_rehearsal import check_memory, rehearse_restore
from elastane.run.worker.state.training_state import combine_digests

from .lessons import FEATURES, Lesson, build_spec, train_elastic


class Everything(nn.Module):
    """All that can make a layout differ: channels last, tied and frozen weights, buffers of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, FEATURES)
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.frozen = nn.Linear(FEATURES, FEATURES)
        self.frozen.requires_grad_(False)
        self.wide = nn.Linear(FEATURES, 5000, bias=False)
        self.narrow = nn.Linear(5000, FEATURES, bias=False)
        self.tied = nn.Linear(FEATURES, FEATURES)
        self.tied.weight = self.embed.weight

    def forward(self, inputs):
        hidden = self.frozen(self.norm(self.embed(inputs)))
        images = hidden.reshape(-1, 1, 2, 3).expand(-1, 2, -1, -1)
        images = nn.functional.pad(images, (0, 0, 0, 1))
        return (
            self.tied(hidden + self.narrow(torch.tanh(self.wide(hidden))))
            + self.conv(images).mean((1, 2, 3))[:, None]
        )


def two_groups(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": weights, "betas": (0.8, 0.9)}, {"params": others, "lr": 0.02}], lr=0.05
    )


def momentum(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)


def adafactor(model):
    # State of other shapes than the parameter's, in a class with state that is never sharded.
    return torch.optim.Adafactor([p for p in model.parameters() if p.requires_grad], lr=0.01)


OPTIMIZERS = {"adamw": two_groups, "momentum": momentum, "adafactor": adafactor}


@pytest.fixture(params=OPTIMIZERS)
def learned(request):
    return train_elastic(Lesson(Everything, optimizer=OPTIMIZERS[request.param], steps=3))


def write_checkpoint(catalog, state, *, writers=3, step=3):
    """Write and publish a checkpoint; each worker writes some of the blocks."""
    blocks, name = range(len(state.layout.blocks)), format_checkpoint_name(step)
    parts = []
    for worker in range(writers):
        encoded = EncodedPart(format_part_name(worker), list(list_slices(state, blocks[worker::writers])))
        parts.append(encoded.describe(catalog.write(name, encoded.name, encoded)))
    plain = {
        "rest": json.dumps(state.replicated.describe()[0]),
        "scalars": collect_scalars(state, blocks),
        KEY: msgspec.to_builtins(describe_model(state, describe_adapter(state.model))),
    }
    aliases = {f"model.{second}": f"model.{first}" for second, first in state.find_aliases().items()}
    manifest = Manifest(name=name, step=step, created="", parts=tuple(parts), plain=plain, aliases=aliases)
    return publish_checkpoint(catalog, manifest)


@pytest.fixture
def kept(learned, tmp_path):
    catalog = Catalog(LocalStorage(tmp_path / "checkpoints"))
    return catalog, write_checkpoint(catalog, learned.run._trainer.state)


def compute_digest(state):
    return combine_digests({block: state.digest(block) for block in range(len(state.layout.blocks))})


@pytest.mark.parametrize("workers", [1, 3])
def test_a_rehearsal_ends_with_the_digest_of_the_stored_state(learned, kept, workers):
    catalog, manifest = kept
    found = rehearse_restore(catalog.storage, manifest, workers, None)
    assert found.digest == compute_digest(learned.run._trainer.state)
    assert found.bytes == workers * rehearse_restore(catalog.storage, manifest, 1, None).bytes > 0


@pytest.mark.parametrize("workers", [1, 3])
def test_a_rehearsal_in_blocks_ends_with_the_digest_of_the_stored_state(tmp_path, workers):
    state = train_elastic(Lesson(Everything, optimizer=two_groups, steps=3)).run._trainer.state
    catalog = Catalog(LocalStorage(tmp_path))
    manifest = write_checkpoint(catalog, state)
    sharded = rehearse_restore(catalog.storage, manifest, workers, 2)
    assert sharded.digest == compute_digest(state)
    if workers > 2:
        # All workers read the values, and two of them each piece of the optimizer state.
        assert sharded.bytes < rehearse_restore(catalog.storage, manifest, workers, None).bytes


def test_a_rehearsal_notices_damage(kept):
    catalog, manifest = kept
    part = max(manifest.parts, key=lambda part: part.bytes)
    with open(f"{catalog.storage.url}/{manifest.name}/{part.name}", "r+b") as file:  # noqa: PTH123
        file.seek(part.items[-1].raw_offset)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Damaged, match=part.name):
        rehearse_restore(catalog.storage, manifest, 1, None)


def test_a_rehearsal_that_does_not_fit_into_memory_is_refused():
    with pytest.raises(BadInput, match="fewer --workers"):
        check_memory(1 << 60, 3)


def test_an_export_holds_the_stored_state(learned, kept):
    catalog, manifest = kept
    state = learned.run._trainer.state
    with CheckpointReader(catalog.storage, manifest) as reader:
        found = read_trained_model(reader, manifest, max_shard_bytes=10**9, optimizer=True)
        weights = read_state_dict(found.model)
        assert list(weights) == [name for name in state.model.state_dict() if name != "tied.weight"] + [
            "tied.weight"
        ]
        for name, tensor in state.model.state_dict().items():
            assert torch.equal(weights[name], tensor), name
        assert weights["tied.weight"] is weights["embed.weight"]
        mine, theirs = found.optimizer.build_torch_state(), read_optimizer_state(state).build_torch_state()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for number, some in theirs["state"].items():
        assert some.keys() == mine["state"][number].keys()
        for key, entry in some.items():
            if isinstance(entry, torch.Tensor):
                assert torch.equal(mine["state"][number][key], entry)
            else:
                assert mine["state"][number][key] == entry


def test_an_export_of_the_last_checkpoint_has_the_bytes_of_the_finished_model(tmp_path):
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}

    def loss(model, batch):
        words = (batch[0].abs() * 3).long().clamp(max=10)
        return model(input_ids=words, labels=words).loss, None

    lesson = Lesson(
        lambda: GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)), loss=loss, steps=2
    )
    state = train_elastic(lesson).run._trainer.state
    files = RunDir(tmp_path / "run")
    files.root.mkdir()
    write_finished(state, files, build_spec())
    catalog = Catalog(LocalStorage(tmp_path / "checkpoints"))
    manifest = write_checkpoint(catalog, state)
    with CheckpointReader(catalog.storage, manifest) as reader:
        found = read_trained_model(reader, manifest, max_shard_bytes=10**9, optimizer=False)
        export_model(found, "hf", tmp_path / "hf")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "hf" / name).read_bytes() == (files.root / name).read_bytes(), name


def test_a_checkpoint_has_the_text_files_of_the_tokenizer_and_no_other_name(learned, tmp_path):
    state = learned.run._trainer.state
    files = {"tokenizer.json": b"{}", "tokenizer.model": b"\xff", "../escaped.json": b"{}"}
    described = describe_model(state, None, files)
    assert described.texts["tokenizer.json"] == "{}"
    assert "tokenizer.model" not in described.texts
    manifest = write_checkpoint(Catalog(LocalStorage(tmp_path / "checkpoints")), state)
    manifest.plain[KEY] = msgspec.to_builtins(described)
    with CheckpointReader(LocalStorage(tmp_path / "checkpoints"), manifest) as reader:
        found = read_trained_model(reader, manifest, max_shard_bytes=10**9, optimizer=False)
    assert set(found.texts) <= {"config.json", "generation_config.json", "tokenizer.json"}
    assert found.texts["tokenizer.json"] == b"{}"


def test_a_checkpoint_of_another_program_is_refused(kept):
    catalog, manifest = kept
    foreign = msgspec.structs.replace(manifest, plain={})
    with pytest.raises(BadInput, match="not written by a run"):
        rehearse_restore(catalog.storage, foreign, 1, None)
