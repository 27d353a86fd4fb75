"""The models of recipes: classes of ``transformers``, unmodified, with random or pretrained weights."""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from elastane.integrations.recipes.families import FAMILIES
from elastane.integrations.recipes.model_source import MXFP4, find_quantization, read_pretrained_config
from elastane.integrations.recipes.recipe import LoraSpec, ModelSpec, Recipe

TOKEN_NAMES = ("bos_token_id", "eos_token_id", "pad_token_id")


def build_model(recipe: Recipe, tokenizer: Any) -> Any:
    """Return the model of a recipe, with its adapter, in training mode, for the tokenizer of its data."""
    spec = recipe.model
    model = load_model(spec.source, spec.dtype) if spec.source else build_random_model(spec, tokenizer)
    if recipe.training.recompute_activations:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    if recipe.lora is not None:
        model = add_adapter(model, recipe.lora)
    return model.train()


def build_model_config(spec: ModelSpec, tokenizer: Any = None) -> Any:
    """Return the configuration of a model with random weights.

    A tokenizer gives the size of the vocabulary and the numbers of special tokens that ``spec`` omits.
    """
    from transformers import AutoConfig

    own: dict[str, Any] = {}
    if tokenizer is not None:
        own = {"vocab_size": len(tokenizer)} | {name: getattr(tokenizer, name) for name in TOKEN_NAMES}
    return AutoConfig.for_model(FAMILIES[spec.family].model_type, **own | spec.config)


def build_random_model(spec: ModelSpec, tokenizer: Any = None) -> Any:
    """Return a model with random weights, drawn from the random numbers of torch."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        build_model_config(spec, tokenizer), dtype=getattr(torch, spec.dtype)
    )


def load_model(source: str, dtype: str) -> Any:
    """Return a pretrained model of a folder with plain weights; quantized ones must be in MXFP4."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import Mxfp4Config

    options: dict[str, Any] = {}
    if find_quantization(read_pretrained_config(Path(source))) == MXFP4:
        # By default transformers keeps the experts quantized where its kernels are installed, and frozen.
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, dtype), local_files_only=True, trust_remote_code=False, **options
    )


def list_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a model, as `transformers` names the modules that must stay whole."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in kinds]


def divide_model(model: Any) -> Any:
    """Divide a model by FSDP2 among the processes of a worker, and return it; one process keeps it whole.

    FSDP gathers a layer when it is needed.
    """
    if not dist.is_torchelastic_launched():
        return model
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    for layer in list_layers(model):
        fully_shard(layer)
    if hasattr(model, "get_base_model"):
        # To generate, an adapter calls the base model, past the adapter's own forward.
        fully_shard(model.get_base_model())
    return fully_shard(model)


def add_adapter(model: nn.Module, spec: LoraSpec) -> Any:
    """Return the model with a low-rank adapter; only the weights of the adapter train."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=list(spec.layers) or "all-linear",
    )
    with warnings.catch_warnings():
        # peft asks transformers by the old name of a property.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        return get_peft_model(model, config)
