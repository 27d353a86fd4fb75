"""What a tokenizer is: anything that encodes text; how it is asked, and how two are told apart."""

import hashlib
import json
from collections.abc import Iterable, Sized
from typing import Any, Literal, Protocol, TypeAlias

PROBE = "The quick brown fox, 3.14 — żółw\n\tjumps. 😀"


class Encoder(Protocol):
    """A ``tokenizers.Tokenizer``, a tokenizer of ``transformers``, or one's own."""

    def encode(self, text: str, /) -> Any: ...  # noqa: ANN401 - token numbers, or something with .ids


Tokenizer: TypeAlias = Encoder | Literal["bytes"]


def encode_text(tokenizer: Tokenizer, text: str) -> Iterable[int]:
    """Token numbers of a text, without the special tokens of whole sequences."""
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
    """Token numbers are below it; None: nobody knows."""
    if tokenizer == "bytes":
        return 256
    asked: Any = getattr(tokenizer, "get_vocab_size", None)
    if callable(asked):
        return int(asked())
    return len(tokenizer) if isinstance(tokenizer, Sized) else None


def digest_tokenizer(tokenizer: Tokenizer) -> str:
    """SHA-256 that differs when the tokens would: over all a tokenizer is made of, or what is known of it."""
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
