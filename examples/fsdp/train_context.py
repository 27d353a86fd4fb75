"""Train a small Llama with context parallelism; `context_parallel.py` says how to start this."""

import elastane
import torch
from context_parallel import build_context_llama, compute_loss

from model import make_tokens

run = elastane.join()
model, mesh = build_context_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
data = make_tokens()
for step in run.steps(data, global_batch=16, microbatch=2, until="2 epochs", data=mesh):
    for batch in step:
        step.backward(compute_loss(model, batch, mesh["context"]))
    run.print(f"step {step.number}: loss {step.loss:.4f}")
