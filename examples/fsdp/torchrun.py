"""Train a small Llama; `model.py` says how to start this."""

import torch
from torch.utils.data import DataLoader, DistributedSampler

from model import build_llama, make_tokens

model = build_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = make_tokens()
for epoch in range(2):
    for batch in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
