"""The model families of recipes: how ``transformers`` names them, and the fields of their configurations.

The tables are here, so that a recipe is checked without an import of ``transformers``.
"""

from typing import Literal, TypeAlias, get_args

import msgspec

FamilyName: TypeAlias = Literal["llama", "gpt-oss", "qwen3", "gpt"]
"""The families whose configurations a recipe can write; a pretrained model may be of any family."""

COMMON = ("vocab_size", "initializer_range", "tie_word_embeddings", "bos_token_id", "eos_token_id")
DECODER = (
    *COMMON,
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "attention_bias",
    "attention_dropout",
)


class ModelFamily(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models.

    Args:
        model_type: its name in ``transformers``.
        fields: the fields of its configuration.
        positions: the field with the longest context.
        width: the field with the number of channels.
        heads: the field with the number of attention heads.
    """

    model_type: str
    fields: tuple[str, ...]
    positions: str = "max_position_embeddings"
    width: str = "hidden_size"
    heads: str = "num_attention_heads"


FAMILIES: dict[FamilyName, ModelFamily] = {
    "llama": ModelFamily(model_type="llama", fields=(*DECODER, "mlp_bias")),
    "gpt-oss": ModelFamily(
        model_type="gpt_oss",
        fields=(
            *DECODER,
            "num_local_experts",
            "num_experts_per_tok",
            "router_aux_loss_coef",
            "sliding_window",
            "layer_types",
            "swiglu_alpha",
            "swiglu_limit",
        ),
    ),
    "qwen3": ModelFamily(
        model_type="qwen3",
        fields=(*DECODER, "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    ),
    "gpt": ModelFamily(
        model_type="gpt2",
        fields=(
            *COMMON,
            "n_embd",
            "n_layer",
            "n_head",
            "n_inner",
            "n_positions",
            "activation_function",
            "layer_norm_epsilon",
            "embd_pdrop",
            "resid_pdrop",
            "attn_pdrop",
        ),
        positions="n_positions",
        width="n_embd",
        heads="n_head",
    ),
}
assert tuple(FAMILIES) == get_args(FamilyName)
