"""The text files beside a finished model."""

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from elastane.common.errors import BadInput
from elastane.run.worker.finished.adapters import ADAPTER_CONFIG, BASE_CONFIG, Adapter
from elastane.run.worker.finished.configs import CONFIG, GENERATION, read_configs
from elastane.run.worker.finished.named_tensors import COMPILED
from elastane.run.worker.values import describe_value

TEXTS = (CONFIG, GENERATION, ADAPTER_CONFIG, BASE_CONFIG)
"""All such files; a model has some of them."""
PROBLEM = "adapter_problem"
"""The key in the header of the weights that says why the model's adapter has no files."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
)
"""All names under which the method ``save_pretrained`` of tokenizers writes files."""


def read_model_texts(model: nn.Module, adapter: Adapter | None) -> dict[str, bytes]:
    """Return the files of `TEXTS` that a model has, by name.

    Args:
        model: any model.
        adapter: the adapter of the model, see `describe_adapter`.
    """
    return read_configs(getattr(model, COMPILED, model)) if adapter is None else dict(adapter.texts)


# -- the files of a tokenizer of ``transformers``, which a run writes beside its model -------------------


def check_tokenizer(tokenizer: object) -> None:
    """Check the tokenizer given to ``run.prepare``; None is allowed.

    Raises:
        BadInput: it cannot write its files.
    """
    if tokenizer is not None and not callable(getattr(tokenizer, "save_pretrained", None)):
        raise BadInput(
            f"run.prepare was given {describe_value(tokenizer)} as tokenizer=, which has no save_pretrained",
            means="the run writes the tokenizer beside the finished model, and cannot write this one",
            do="pass a tokenizer of transformers, or leave it out",
        )


def read_tokenizer_texts(tokenizer: Any) -> dict[str, bytes]:
    """Return the files of a tokenizer, by name; equal tokenizers give equal bytes."""
    if tokenizer is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        paths = [Path(folder) / name for name in TOKENIZER_FILES]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}
