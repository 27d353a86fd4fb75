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
        encoded = encode(text, add_special_tokens=False)
    except TypeError:
        encoded = encode(text)
    numbers: Iterable[int] = getattr(encoded, "ids", encoded)
    return numbers


def find_vocabulary_size(tokenizer: Tokenizer) -> int | None:
    """Return the size of the vocabulary, below which all tokens are; None: unknown."""
    if tokenizer == "bytes":
        return 256
    get_size: Any = getattr(tokenizer, "get_vocab_size", None)
    if callable(get_size):
        return int(get_size())
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


def digest_tokenizer(tokenizer: Tokenizer) -> str:
    """Return a SHA-256 over the tokenizer, as far as it is readable, and over the tokens of a probe text."""
    backend: Any = tokenizer
    if tokenizer != "bytes":
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(to_str := getattr(backend, "to_str", None)):
        text = str(to_str())
    elif callable(vocabulary := getattr(backend, "get_vocab", None)):
        text = json.dumps(sorted(vocabulary().items()))
    else:
        text = str(getattr(backend, "fingerprint", ""))
    probe = [int(token) for token in encode_text(tokenizer, PROBE)]
    return hashlib.sha256(f"{type(tokenizer).__qualname__} {text} {probe}".encode()).hexdigest()
