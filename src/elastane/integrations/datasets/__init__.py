"""Map-style datasets of tokens, from text files or token files; they need NumPy but not torch."""

from elastane.common.extras import require_for_import

with require_for_import("torch", "a dataset of tokens needs numpy"):
    from elastane.integrations.datasets.text import TextFiles as TextFiles
    from elastane.integrations.datasets.tokens import TokenFile as TokenFile

__all__ = ["TextFiles", "TokenFile"]
