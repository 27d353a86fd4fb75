"""The files beside a model's weights that tell others how to build the model."""

from torch import nn

from elastane.runtime.finished.adapters import ADAPTER_CONFIG, BASE_CONFIG, Adapter
from elastane.runtime.finished.configs import CONFIG, GENERATION, read_configs
from elastane.runtime.finished.named_tensors import COMPILED

TEXTS = (CONFIG, GENERATION, ADAPTER_CONFIG, BASE_CONFIG)
"""All there are; a model has some of them."""
PROBLEM = "adapter_problem"
"""In the header of the weights: why no files of the model's adapter were written."""


def read_model_texts(model: nn.Module, adapter: Adapter | None) -> dict[str, bytes]:
    """Return those of `TEXTS` that a model has.

    Args:
        model: any.
        adapter: the adapter of this model, see `adapter_of`.
    """
    return read_configs(getattr(model, COMPILED, model)) if adapter is None else dict(adapter.texts)
