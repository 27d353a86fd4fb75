"""The measures that a plan needs: of a model without memory, on the meta device, and of this machine."""

import time
from typing import Any

import msgspec
import torch
from torch import nn

from elastane.integrations.recipes.activations import ModelShape, count_flops
from elastane.integrations.recipes.data.open_data import load_tokenizer
from elastane.integrations.recipes.losses import causal_loss_sum
from elastane.integrations.recipes.models import add_adapter, build_model_config, list_layers
from elastane.integrations.recipes.optimization import build_optimizer
from elastane.integrations.recipes.recipe import Recipe

SEQUENCES, CONTEXT, VOCABULARY = 2, 128, 2048
"""The batches and the tokens of the small model that measures the speed of this machine."""
REPETITIONS = 3


class ModelMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of a model.

    Args:
        shape: its sizes.
        parameters: the number of all parameters; tied ones count once.
        parameters_bytes: their size.
        trained: the number of trained parameters.
        largest_bytes: the size of the largest trained parameter.
        sections: of the flat state, as elements and bytes of each: one per parameter group and data type.
        computed: the parameters that a token passes through: no embeddings, and the chosen experts only.
        computed_trained: those of them that are trained.
        layer_bytes: the size of the largest layer, which the processes of a worker gather as a whole.
        outer_bytes: the size of all that is in no layer, such as embeddings.
        layer_trained_bytes: the size of the trained parameters of the largest layer.
        outer_trained_bytes: the size of the trained parameters that are in no layer.
    """

    shape: ModelShape
    parameters: int
    parameters_bytes: int
    trained: int
    largest_bytes: int
    sections: tuple[tuple[int, int], ...]
    computed: int
    computed_trained: int
    layer_bytes: int
    outer_bytes: int
    layer_trained_bytes: int
    outer_trained_bytes: int

    def divide(self, processes: int) -> "ModelMeasures":
        """Return the measures of the part that each process of a worker keeps."""
        return msgspec.structs.replace(
            self,
            parameters_bytes=-(-self.parameters_bytes // processes),
            largest_bytes=-(-self.largest_bytes // processes),
            sections=tuple((-(-elements // processes), size) for elements, size in self.sections),
        )


def measure_model(recipe: Recipe) -> ModelMeasures:
    """Return the measures of a recipe's model; no weights are read or made.

    Raises:
        BadInput: the tokenizer, which decides the vocabulary, cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    config = _build_config(recipe)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, recipe.model.dtype))  # type: ignore[no-untyped-call]
        if recipe.lora is not None:
            model = add_adapter(model, recipe.lora)
    return _measure(model, config, recipe)


def read_shape(config: Any) -> ModelShape:
    """Return the sizes in a configuration of `transformers`."""
    if config.model_type == "gpt2":
        return ModelShape(
            layers=config.n_layer,
            width=config.n_embd,
            queries=config.n_embd,
            keys=config.n_embd,
            heads=config.n_head,
            key_heads=config.n_head,
            inner=config.n_inner or 4 * config.n_embd,
            vocabulary=config.vocab_size,
            gated=False,
        )
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return ModelShape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        queries=heads * head_dim,
        keys=key_heads * head_dim,
        heads=heads,
        key_heads=key_heads,
        inner=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        vocabulary=config.vocab_size,
        experts_per_token=getattr(config, "num_experts_per_tok", None) or 0,
        query_norm=config.model_type.startswith("qwen3"),
        keeps_scores=config.model_type == "gpt_oss",
    )


def _build_config(recipe: Recipe) -> Any:
    from transformers import AutoConfig

    spec = recipe.model
    if spec.source:
        return AutoConfig.from_pretrained(spec.source, local_files_only=True, trust_remote_code=False)
    if "vocab_size" in spec.config:
        return build_model_config(spec)
    # A tokenizer that is trained on enough text has just as many tokens as the recipe asks for.
    trained = recipe.data.vocabulary
    size = len(load_tokenizer(recipe.data, recipe.task)) if recipe.data.tokenizer else trained
    return build_model_config(msgspec.structs.replace(spec, config=spec.config | {"vocab_size": size}))


def _measure(model: nn.Module, config: Any, recipe: Recipe) -> ModelMeasures:
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    sections: list[tuple[int, int]] = []
    for group in build_optimizer(model, recipe.training).param_groups:
        sizes: dict[int, int] = {}
        for parameter in group["params"]:
            sizes[parameter.element_size()] = sizes.get(parameter.element_size(), 0) + parameter.numel()
        sections += [(elements, size) for size, elements in sizes.items()]
    shares = _find_computed_shares(model, config)
    layers = [sum(one.nbytes for one in layer.parameters()) for layer in list_layers(model)]
    trained_layers = [
        sum(one.nbytes for one in layer.parameters() if one.requires_grad) for layer in list_layers(model)
    ]
    parameters_bytes = sum(parameter.nbytes for parameter in parameters)
    return ModelMeasures(
        shape=read_shape(config),
        parameters=sum(parameter.numel() for parameter in parameters),
        parameters_bytes=parameters_bytes,
        trained=sum(parameter.numel() for parameter in trained),
        largest_bytes=max(parameter.nbytes for parameter in trained),
        sections=tuple(sections),
        computed=round(sum(share * parameter.numel() for parameter, share in shares)),
        computed_trained=round(
            sum(share * parameter.numel() for parameter, share in shares if parameter.requires_grad)
        ),
        layer_bytes=max(layers, default=0),
        outer_bytes=parameters_bytes - sum(layers),
        layer_trained_bytes=max(trained_layers, default=0),
        outer_trained_bytes=sum(parameter.nbytes for parameter in trained) - sum(trained_layers),
    )


def _find_computed_shares(model: nn.Module, config: Any) -> list[tuple[nn.Parameter, float]]:
    """Return each parameter with the share of it that a token passes through."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    outputs = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    chosen = (getattr(config, "num_experts_per_tok", None) or 1) / experts
    return [
        (parameter, chosen if ".experts." in name else 1.0)
        for name, parameter in model.named_parameters()
        if id(parameter) not in embeddings or id(parameter) in outputs
    ]


def measure_flops(dtype: str) -> float:
    """Return the floating-point operations per second of a small Llama in training, on the device here.

    A worker computes with one thread, so the measurement does, too.

    The plan assumes that the large model computes at this speed. On a GPU a small model does not fill the
    device, so a measured large one, passed to the plan, is better there.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(device=device, dtype=getattr(torch, dtype)).train()
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, CONTEXT), device=device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(REPETITIONS + 1):
        start = time.perf_counter()
        loss_sum, _ = causal_loss_sum(model, {"input_ids": tokens, "targets": tokens})
        loss_sum.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    computed = sum(parameter.numel() for parameter in model.parameters()) - VOCABULARY * config.hidden_size
    flops = count_flops(read_shape(config), computed, computed, CONTEXT, recompute=False)
    # The first pass also allocates its memory, and other programs only make a pass slower.
    return flops * SEQUENCES * CONTEXT / min(times[1:])
