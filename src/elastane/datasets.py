"""Map-style datasets of tokens for training scripts; see `elastane.integrations.datasets`."""

from elastane.integrations.datasets import TextFiles, TokenFile

__all__ = ["TextFiles", "TokenFile"]
