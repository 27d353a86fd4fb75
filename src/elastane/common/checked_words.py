"""Bytes as one word that people copy: a prefix with the version of its form, base64, and a check.

A word has no characters that a shell treats specially. The check finds words that were copied in part.
"""

import base64
import binascii
import hashlib

from elastane.common.untrusted_data import Malformed

CHECK_BYTES = 4


def encode_word(prefix: str, packed: bytes) -> str:
    checked = packed + hashlib.sha256(packed).digest()[:CHECK_BYTES]
    return prefix + base64.urlsafe_b64encode(checked).decode().rstrip("=")


def decode_word(prefix: str, word: str, *, longest: int) -> bytes:
    """Return the bytes of a word that has this prefix.

    Args:
        longest: the most characters that a word may have.

    Raises:
        Malformed: a character of it is missing or wrong, or it is too long.
    """
    if len(word) > longest:
        raise Malformed("it is too long")
    try:
        encoded = word.removeprefix(prefix).encode("ascii")
        checked = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Malformed(str(error)) from None
    packed = checked[:-CHECK_BYTES]
    # Compare the text: several spellings of the last character have the same bits.
    if encode_word(prefix, packed) != word:
        raise Malformed("a character is missing or wrong")
    return packed
