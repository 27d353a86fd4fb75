"""Pure decisions about checkpoints: how tensors are cut, whether a manifest is complete, what is retained."""
