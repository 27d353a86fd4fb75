"""The state as files that `torch.distributed.checkpoint` reads too, and back."""
