"""Tokenizers: any objects that encode text, with the size of the vocabulary and an identifying digest."""

import hashlib
import json
from collections.abc import Iterable, Sized
from typing import Any, Literal, Protocol, TypeAlias

PROBE = "The quick brown fox, 3.14 — żółw\n\tjumps. 😀"


class Encoder(Protocol):
    """A ``tokenizers.Tokenizer``, a tokenizer of ``transformers``, or the user's own class."""

    def encode(self, text: str, /) -> Any: ...


Tokenizer: TypeAlias = Encoder | Literal["bytes"]


def encode_text(tokenizer: Tokenizer, text: str) -> Iterable[int]:
    """Return the tokens of a text, without the special tokens of whole sequences."""
    if tokenizer == "bytes":
        return text.encode()
    encode: Any = tokenizer.encode
    try:
        found = encode(text, add_special_tokens=False)
    except TypeError:
        found = encode(text)
    numbers: Iterable[int] = getattr(found, "ids", found)
    return numbers


def find_vocabulary_size(tokenizer: Tokenizer) -> int | None:
    """Return the size of the vocabulary, below which all tokens are; None: unknown."""
    if tokenizer == "bytes":
        return 256
    asked: Any = getattr(tokenizer, "get_vocab_size", None)
    if callable(asked):
        return int(asked())
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


def digest_tokenizer(tokenizer: Tokenizer) -> str:
    """Return a SHA-256 over the tokenizer, as far as it is readable, and over the tokens of a probe text."""
    whole: Any = tokenizer
    if tokenizer != "bytes":
        whole = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(to_str := getattr(whole, "to_str", None)):
        text = str(to_str())
    elif callable(vocabulary := getattr(whole, "get_vocab", None)):
        text = json.dumps(sorted(vocabulary().items()))
    else:
        text = str(getattr(whole, "fingerprint", ""))
    probe = [int(token) for token in encode_text(tokenizer, PROBE)]
    return hashlib.sha256(f"{type(tokenizer).__qualname__} {text} {probe}".encode()).hexdigest()
