"""Token data as people have it, as map-style datasets of NumPy arrays; nothing here needs torch."""

from elastane.api.extras import require_for_import

with require_for_import("torch", "a dataset of tokens needs numpy"):
    from elastane.datasets.text import TextFiles as TextFiles
    from elastane.datasets.tokens import TokenFile as TokenFile

__all__ = ["TextFiles", "TokenFile"]
