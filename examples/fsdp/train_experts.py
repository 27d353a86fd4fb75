"""Train a small mixture of experts with expert parallelism; `expert_parallel.py` says how to start this."""

import elastane
import torch
from expert_parallel import build_experts, compute_loss

from model import make_tokens

run = elastane.join()
model, mesh = build_experts()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
data = make_tokens()
for step in run.steps(data, global_batch=16, microbatch=2, until="2 epochs", data=mesh):
    for batch in step:
        step.backward(compute_loss(model, batch, mesh["expert"]))
    run.print(f"step {step.number}: loss {step.loss:.4f}")
