"""Train a small Llama with tensor parallelism; `model.py` says how to start this."""

import elastane
import torch

from model import build_tensor_llama, make_tokens

run = elastane.join()
model, places = build_tensor_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer)
data = make_tokens()
for step in run.steps(data, global_batch=16, microbatch=2, until="2 epochs", data=places):
    for batch in step:
        loss = model(input_ids=batch, labels=batch).loss
        step.backward(loss)
    run.print(f"step {step.number}: loss {step.loss:.4f}")
