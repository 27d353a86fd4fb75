"""Readable times, sizes, speeds and losses."""

THOUSAND = 1000
"""Units of sizes are powers of it, and numbers above it are whole."""

LONG_MS = 10
"""Below it a tenth of a millisecond is a difference."""


def format_ms(ms: float) -> str:
    """Return milliseconds with their significant digits."""
    return f"{ms:.1f} ms" if ms < LONG_MS else f"{ms:,.0f} ms"


def format_size(size_bytes: float) -> str:
    """Return a number of bytes in a readable unit: ``512 B``, ``1.4 MB``, ``12.1 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < THOUSAND:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= THOUSAND
    return f"{size_bytes:.1f} TB"


def describe_agreement(microbatches: int) -> str:
    """Describe the spot checks of a run, at least one."""
    return f"{microbatches:,} microbatch{'es' * (microbatches != 1)} computed by two workers: the same bits"


def format_copies(copies: int | None) -> str:
    """Return a number of copies of the optimizer state; None: every worker keeps one."""
    return "one on every worker" if copies is None else f"{copies:,}"


def format_transfer_speed(size_bytes: int, seconds: float) -> str:
    """Return a phrase such as ``1.2 GB in 0.80 s (1.50 GB/s)``."""
    rate = size_bytes / 1e9 / seconds if seconds else 0.0
    return f"{format_size(size_bytes)} in {seconds:.2f} s ({rate:.2f} GB/s)"


def format_loss(loss: float | None) -> str:
    """Return a loss with four decimal places; None: it was not finite."""
    return "not finite" if loss is None else f"{loss:.4f}"
