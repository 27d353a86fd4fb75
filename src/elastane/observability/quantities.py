"""Times, sizes and speeds as a reader expects them."""


def ms_text(ms: float) -> str:
    """Milliseconds in the digits that can be trusted."""
    return f"{ms:.1f} ms" if ms < 10 else f"{ms:,.0f} ms"  # noqa: PLR2004 - below, a tenth is a difference


def duration(seconds: float) -> str:
    """Seconds as a reader says them: ``8.4 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size_text(size_bytes: float) -> str:
    """Bytes in the unit a reader expects: ``512 B``, ``1.4 MB``, ``12.1 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:  # noqa: PLR2004 - the next unit
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def speed_text(size_bytes: int, seconds: float) -> str:
    """``1.2 GB in 0.80 s (1.50 GB/s)``."""
    rate = size_bytes / 1e9 / seconds if seconds else 0.0
    return f"{size_text(size_bytes)} in {seconds:.2f} s ({rate:.2f} GB/s)"
