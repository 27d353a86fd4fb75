"""The files beside a model's weights from which other libraries build the model."""

from torch import nn

from elastane.run.worker.finished.adapters import ADAPTER_CONFIG, BASE_CONFIG, Adapter
from elastane.run.worker.finished.configs import CONFIG, GENERATION, read_configs
from elastane.run.worker.finished.named_tensors import COMPILED

TEXTS = (CONFIG, GENERATION, ADAPTER_CONFIG, BASE_CONFIG)
"""All such files; a model has some of them."""
PROBLEM = "adapter_problem"
"""The key in the header of the weights that says why the model's adapter has no files."""


def read_model_texts(model: nn.Module, adapter: Adapter | None) -> dict[str, bytes]:
    """Return the files of `TEXTS` that a model has, by name.

    Args:
        model: any model.
        adapter: the adapter of the model, see `describe_adapter`.
    """
    return read_configs(getattr(model, COMPILED, model)) if adapter is None else dict(adapter.texts)
