"""Losses equal those of `transformers` and of the papers, and their sums divide as batches do."""

import math

import pytest
import torch
from torch.nn import functional

from elastane.integrations.recipes.data.open_data import PaddedCollation
from elastane.integrations.recipes.losses import (
    causal_loss_sum,
    find_router_coefficient,
    preference_loss_sum,
    preference_margins,
    sequence_log_probs,
)
from tests.lazy_modules import LazyModule

transformers = LazyModule("transformers")
VOCABULARY = 40


def build_llama(**options):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        **options,
    )
    return transformers.LlamaForCausalLM(config)


def build_gpt_oss(coefficient=0.5):
    torch.manual_seed(3)
    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        router_aux_loss_coef=coefficient,
        layer_types=["sliding_attention", "full_attention"],
    )
    return transformers.GptOssForCausalLM(config)


@pytest.fixture(scope="module", params=[build_llama, build_gpt_oss])
def model(request):
    return request.param()


def make_samples(*lengths, prompt=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for length in lengths:
        tokens = torch.randint(0, VOCABULARY, (length + 1,), generator=generator)
        targets = tokens[1:].clone()
        targets[:prompt] = -100
        samples.append((tokens[:-1].numpy(), targets.numpy()))
    return samples


def make_pairs(*lengths, seed=0):
    chosen, rejected = make_samples(*lengths, seed=seed), make_samples(*lengths[::-1], seed=seed + 1)
    return [(*left, *right) for left, right in zip(chosen, rejected, strict=True)]


collate = PaddedCollation(padding=0, context=64)


def to_labels(batch):
    """Return the labels that `transformers` itself shifts: the target of a position is the next label."""
    labels = torch.full_like(batch["targets"], -100)
    labels[:, 1:] = batch["targets"][:, :-1]
    return labels


def compute_transformers_loss(model, batch, **options):
    # The shift drops the last target; samples end before the batch does, so it is padding.
    assert (batch["targets"][:, -1] == -100).all()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    return model(**inputs, labels=to_labels(batch), use_cache=False, **options).loss


def test_the_loss_of_a_microbatch_is_that_of_transformers_with_its_router_loss(model):
    batch = collate(make_samples(5, 13, 9))
    model.train()
    loss_sum, weight = causal_loss_sum(model, batch)
    coefficient = find_router_coefficient(model)
    expected = compute_transformers_loss(
        model, batch, **({"output_router_logits": True} if coefficient else {})
    )
    assert weight == 5 + 13 + 9 - 3 * 2
    torch.testing.assert_close(loss_sum / weight, expected, rtol=1e-6, atol=0)
    if coefficient:
        assert expected > compute_transformers_loss(model, batch), "the router has a loss"


def test_evaluation_leaves_out_the_loss_of_the_router(model):
    batch = collate(make_samples(5, 13, 9))
    model.eval()
    loss_sum, weight = causal_loss_sum(model, batch)
    expected = compute_transformers_loss(model, batch, num_items_in_batch=torch.tensor(weight))
    assert torch.equal(loss_sum / weight, expected)


def test_the_weights_of_the_parts_of_a_batch_are_that_of_the_whole():
    model = build_llama().eval()
    samples = make_samples(5, 13, 9, 7)
    whole, weight = causal_loss_sum(model, collate(samples))
    parts = [causal_loss_sum(model, collate(part)) for part in (samples[:2], samples[2:])]
    assert weight == sum(count for _, count in parts)
    torch.testing.assert_close(whole, sum(loss for loss, _ in parts))


def test_a_router_loss_is_the_mean_over_microbatches_weighed_by_their_targets():
    model = build_gpt_oss()
    parts = [collate(make_samples(5, 13)), collate(make_samples(9, seed=1))]
    totals, entropies, routers, weights = 0, 0, 0, 0
    for batch in parts:
        model.train()
        loss_sum, weight = causal_loss_sum(model, batch)
        model.eval()
        entropy_sum, _ = causal_loss_sum(model, batch)
        outputs = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_router_logits=True
        )
        totals, weights = totals + loss_sum, weights + weight
        entropies, routers = entropies + entropy_sum, routers + weight * outputs.aux_loss
    torch.testing.assert_close(totals / weights, entropies / weights + 0.5 * routers / weights)


def test_padding_changes_neither_the_tokens_loss_nor_the_router_loss(model):
    samples = make_samples(12, 12)
    model.train()
    exact, _ = causal_loss_sum(model, collate(samples))
    longer = {
        name: functional.pad(tensor, (0, 16), value=-100 if name == "targets" else 0)
        for name, tensor in collate(samples).items()
    }
    padded, _ = causal_loss_sum(model, longer)
    torch.testing.assert_close(padded, exact)


def test_the_gradient_of_the_sum_by_its_weight_is_that_of_transformers(model):
    batch = collate(make_samples(5, 13, 9))
    model.train()
    options = {"output_router_logits": True} if find_router_coefficient(model) else {}
    gradients = []
    for loss in (
        torch.div(*causal_loss_sum(model, batch)),
        compute_transformers_loss(model, batch, **options),
    ):
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_log_probabilities_are_those_of_a_loop_over_tokens(model):
    model.eval()
    batch = collate(make_samples(5, 9))
    found = sequence_log_probs(model, batch)
    for row in range(2):
        length = int(batch["attention_mask"][row].sum())
        logits = model(input_ids=batch["input_ids"][row : row + 1, :length]).logits[0]
        expected = 0.0
        for position in range(length):
            target = int(batch["targets"][row, position])
            if target != -100:
                expected += float(torch.log_softmax(logits[position].double(), 0)[target])
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_the_preference_loss_is_equation_7_of_its_paper(model):
    model.eval()
    batch, beta = collate(make_pairs(5, 13, 9)), 0.3
    reference = torch.tensor([-20.0, -41.5, -33.0, -18.0, -60.0, -30.5])
    loss_sum, pairs = preference_loss_sum(model, reference, batch, beta)
    log_probs = sequence_log_probs(model, batch).tolist()
    expected = 0.0
    for pair in range(3):
        chosen = log_probs[pair] - float(reference[pair])
        rejected = log_probs[pair + 3] - float(reference[pair + 3])
        expected += -math.log(1 / (1 + math.exp(-beta * (chosen - rejected))))
    assert pairs == 3
    assert float(loss_sum) == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_a_model_that_equals_its_reference_has_margin_zero_and_loss_log_two():
    model = build_llama().eval()
    batch = collate(make_pairs(5, 13))
    reference = sequence_log_probs(model, batch).detach()
    assert preference_margins(sequence_log_probs(model, batch), reference, 0.1).tolist() == [0.0, 0.0]
    loss_sum, pairs = preference_loss_sum(model, reference, batch, 0.1)
    assert float(loss_sum) / pairs == pytest.approx(math.log(2), rel=1e-6)


def test_a_preference_step_raises_the_margin():
    model = build_llama()
    batch = collate(make_pairs(5, 13))
    reference = sequence_log_probs(model, batch).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_sum, pairs = preference_loss_sum(model, reference, batch, 0.1)
    (loss_sum / pairs).backward()
    optimizer.step()
    assert preference_margins(sequence_log_probs(model, batch), reference, 0.1).mean() > 0
