"""Models with caches that depend on the sequences seen before, which have many lengths."""

import argparse

import faults
import torch
from torch import nn

import elastane

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("llama", "own", "late"), default="llama")
parser.add_argument("--paced-from", type=int, default=1 << 30)
options = parser.parse_args()
STEPS, SAMPLES, TOKENS = 16, 8, 40


class Sequences(torch.utils.data.Dataset):
    """Sequences of 8 to 63 tokens; a few are long, and most are of a length at which the scale matters."""

    def __len__(self):
        return STEPS * SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = 8 if index % 5 == 0 else 18 + (index * 7) % 46
        return torch.randint(0, TOKENS, (length,), generator=generator)


class OwnCaches(nn.Module):
    """A cache in each form: replaced and changed in place; a number, a tensor, a dict and a new attribute."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16)
        self.head = nn.Linear(16, TOKENS)
        self.register_buffer("replaced", torch.ones(16), persistent=False)
        self.register_buffer("in_place", torch.ones(16), persistent=False)
        self.longest, self.tensor, self.lengths = 0, torch.zeros(1), {"longest": 0}

    def forward(self, tokens):
        length = tokens.shape[1]
        if length > 20:
            self.longest = max(self.longest, length)
            self.lengths["longest"] = max(self.lengths["longest"], length)
            self.tensor = torch.maximum(self.tensor, torch.tensor([float(length)]))
            self.replaced = self.replaced.clamp(min=length)
            self.in_place.clamp_(min=length)
            if self.training and not hasattr(self, "first"):
                self.first = length
        scale = 1 + (self.longest + self.lengths["longest"] + getattr(self, "first", 0)) / 100
        hidden = self.embedding(tokens) * (self.replaced + self.in_place + self.tensor) / 100
        return self.head(hidden * scale)


class LateCache(nn.Module):
    """A number that only few sequences change, and that the script resets; and one that the script sets."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 16), nn.Linear(16, TOKENS)
        self.longest = self.temperature = 1.0

    def forward(self, tokens):
        if tokens.shape[1] > 50:
            self.longest += tokens.shape[1]
        return self.head(self.embedding(tokens) * self.temperature * self.longest**0.5)


def build():
    if options.model != "llama":
        return OwnCaches() if options.model == "own" else LateCache()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=TOKENS, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0},
    )  # fmt: skip
    return LlamaForCausalLM(config)


faults.pace(options.paced_from)
run = elastane.join()
torch.manual_seed(0)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
run.prepare(model, optimizer)


def compute_logits(tokens):
    return model(tokens) if options.model != "llama" else model(tokens, use_cache=False).logits


for step in run.steps(
    Sequences(), global_batch=SAMPLES, microbatch=1, until=STEPS, collate=lambda samples: samples[0][None]
):
    for tokens in step:
        logits = compute_logits(tokens[:, :-1])
        step.backward(nn.functional.cross_entropy(logits[0], tokens[0, 1:]))
    if step.number == STEPS // 2:
        score = run.evaluate(Sequences(), microbatch=1, collate=lambda samples: samples[0][None])
        with torch.no_grad():
            for tokens in score:
                score.add(loss=compute_logits(tokens).square().mean())
        run.print("evaluated", score.sums["loss"])
    if options.model == "own" and step.number == 8:
        # The script may change caches between two steps, also by a forward pass of its own.
        model.in_place += 3
        model.eval()
        with torch.no_grad():
            compute_logits(torch.zeros(1, 30, dtype=torch.long))
        model.train()
    if options.model == "late":
        model.longest, model.temperature = 1.0, 1 + step.loss / 10
