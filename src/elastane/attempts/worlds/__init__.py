"""A run under the contract of torchrun: its agent, the requests to it, and its end."""
