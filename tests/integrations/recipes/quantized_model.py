"""A tiny GPT-OSS in MXFP4, as its publisher stores it, and the same model with plain weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.lazy_modules import LazyModule

transformers = LazyModule("transformers")

FP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The values of four bits: one for the sign, two for the exponent, one for the mantissa."""
LARGEST_EXPONENT = 2
BLOCK = 32
"""So many values have one scale."""
BIAS = 127
EXPERTS = ("gate_up_proj", "down_proj")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QUANTIZED = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def write_quantized_model(tokenizer: Any, plain: Path, quantized: Path) -> None:
    """Write one model into two folders: with plain weights, and with experts in MXFP4 of equal values."""
    config = transformers.AutoConfig.for_model("gpt_oss", vocab_size=len(tokenizer), **SIZES)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    stored = {}
    for name, parameter in model.named_parameters():
        if name.endswith(EXPERTS):
            blocks, scales, values = quantize(parameter.detach().float())
            parameter.data.copy_(values)
            assert torch.equal(parameter.float(), values)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        else:
            stored[name] = parameter.detach()
    model.save_pretrained(plain)
    quantized.mkdir()
    save_file(stored, quantized / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((plain / "config.json").read_text()) | {"quantization_config": QUANTIZED}
    (quantized / "config.json").write_text(json.dumps(described))
    for folder in (plain, quantized):
        tokenizer.save_pretrained(folder)


def quantize(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the blocks and scales of expert weights in MXFP4, and the values that these stand for.

    Args:
        weights: of shape experts, inputs, outputs.

    Returns:
        The blocks, two values in a byte, with shape experts, outputs, inputs / 32, 16; the scales without the
        last dimension; and the values in the shape of ``weights``.
    """
    experts, inputs, outputs = weights.shape
    groups = weights.transpose(1, 2).reshape(experts, outputs, inputs // BLOCK, BLOCK)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - LARGEST_EXPONENT
    factors = torch.exp2(exponents)[..., None]
    codes = (groups[..., None] / factors[..., None] - FP4_VALUES).abs().argmin(-1)
    values = (FP4_VALUES[codes] * factors).reshape(experts, outputs, inputs).transpose(1, 2)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return blocks, (exponents + BIAS).to(torch.uint8), values
