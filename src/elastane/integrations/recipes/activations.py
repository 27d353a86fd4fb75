"""What the backward pass of a model keeps of its forward pass, and the arithmetic of a token; pure.

The numbers of saved elements were counted with `torch.autograd.graph.saved_tensors_hooks` on the models of
`transformers` 5.23; a test repeats the count.
"""

import msgspec

FULL_PRECISION_BYTES = 4


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a decoder.

    Args:
        width: h, the channels between layers.
        queries: d, the elements of all query heads of a token.
        keys: k, the elements of all key heads of a token.
        inner: f, the inner channels of an MLP or of one expert.
        vocabulary: V, the number of tokens.
        experts_per_token: of a mixture of experts; 0: one dense MLP.
        gated: the MLP multiplies two projections, as SwiGLU.
        query_norm: queries and keys have norms of their own, as in Qwen 3.
        keeps_scores: the attention keeps its scores, as GPT-OSS with its sinks.
    """

    layers: int
    width: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    experts_per_token: int = 0
    gated: bool = True
    query_norm: bool = False
    keeps_scores: bool = False


class MicrobatchMemory(msgspec.Struct, frozen=True):
    """The memory of a microbatch while its loss is computed.

    Args:
        layers_bytes: what the layers keep for the backward pass.
        logits_bytes: the logits, their cross entropy and its gradient.
    """

    layers_bytes: int
    logits_bytes: int


def estimate_activations(
    shape: ModelShape, *, sequences: int, context: int, element_bytes: int, recompute: bool
) -> MicrobatchMemory:
    """Return the memory that a microbatch needs beside the model.

    Args:
        context: tokens of a sequence.
        element_bytes: of an activation: 4 in fp32, 2 in bf16.
        recompute: layers keep their inputs only, and one layer at a time computes the rest again.
    """
    tokens = sequences * context
    layer = count_saved_bytes(shape, context, element_bytes)
    layers = shape.layers * layer
    if recompute:
        layers = shape.layers * shape.width * element_bytes + layer
    # The logits, the log-probabilities that cross entropy keeps, and their gradients; the last two in fp32.
    logits = shape.vocabulary * (element_bytes + 2 * FULL_PRECISION_BYTES)
    if element_bytes != FULL_PRECISION_BYTES:
        logits += shape.vocabulary * FULL_PRECISION_BYTES
    return MicrobatchMemory(tokens * layers, tokens * logits)


def count_saved_bytes(shape: ModelShape, context: int, element_bytes: int) -> int:
    """Return what one layer keeps of one token for the backward pass."""
    full, rest = _count_saved_elements(shape, context)
    return FULL_PRECISION_BYTES * full + element_bytes * rest


def count_flops(shape: ModelShape, parameters: int, trained: int, context: int, *, recompute: bool) -> float:
    """Return the floating-point operations of a token in training.

    A forward pass takes 2 per active parameter and ``4 * layers * d * context`` for attention (Chowdhery et
    al. 2022, appendix B, without a discount for the causal mask). The backward pass takes as much for the
    gradients of activations, and 2 per trained parameter for theirs.

    Args:
        parameters: those that a token passes through: without embeddings and inactive experts.
        trained: those of them with a gradient.
        context: tokens of a sequence.
        recompute: the forward pass runs twice.
    """
    forward = 2.0 * parameters + 4.0 * shape.layers * shape.queries * context
    attention = 4.0 * shape.layers * shape.queries * context
    backward = 2.0 * parameters + 2.0 * trained + 2 * attention
    return forward * (2 if recompute else 1) + backward


def _count_saved_elements(shape: ModelShape, context: int) -> tuple[int, int]:
    """Return the elements of a token that a layer keeps in fp32, and those that it keeps in its own type."""
    h, d, k, f = shape.width, shape.queries, shape.keys, shape.inner
    if not shape.gated:
        # Two layer norms with mean and deviation, the attention's input projection, and a GELU of tanh.
        return shape.heads, 8 * h + 5 * f + 4
    full, rest = 2 * h + 2, 4 * h + 2 * d + 2 * k
    if shape.query_norm:
        full, rest = full + d + k + shape.heads + shape.key_heads, rest + d + k
    if shape.keeps_scores:
        # Keys and values are repeated for all query heads.
        rest += 2 * d - 2 * k + shape.heads * (context + 1)
    else:
        full += shape.heads
    experts = shape.experts_per_token
    return full, rest + (experts * (2 * h + 7 * f) if experts else 4 * f)
