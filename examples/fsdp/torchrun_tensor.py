"""Train a small Llama with tensor parallelism; `model.py` says how to start this."""

import torch
from torch.utils.data import DataLoader, DistributedSampler

from model import build_tensor_llama, make_tokens

model, places = build_tensor_llama()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
data = make_tokens()
sampler = DistributedSampler(data, places.size(), places.get_local_rank())
for epoch in range(2):
    for batch in DataLoader(data, batch_size=8, sampler=sampler):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
