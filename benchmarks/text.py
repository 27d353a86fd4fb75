"""Paragraphs and tables of Markdown."""


def join_lines(text: str) -> str:
    """Join the lines of a text into one paragraph."""
    return " ".join(text.split())


def format_table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
