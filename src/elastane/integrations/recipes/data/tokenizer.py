"""The tokenizer of a recipe: from a folder on this machine, or trained on the text of the data.

Nothing is downloaded, and no code of a folder runs. A trained tokenizer works on bytes; it is for models too
small for a published one. The same text gives the same bytes of ``tokenizer.json`` in every process: the text
is bounded, the alphabet is fixed, and `tokenizers` breaks ties between pairs by their numbers.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadField, BadInput
from elastane.common.safe_text import fold_text
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.common.user_cache import find_cache, lock_for_one
from elastane.integrations.recipes.data.conversation import SIMPLE_TEMPLATE
from elastane.integrations.recipes.data.spec import DataSpec, Task, check_tokenizer_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LARGEST_TEMPLATE_BYTES = 1 << 20
FORMAT = 1
END_OF_TEXT, PADDING = "<|endoftext|>", "<|pad|>"
SPECIAL = (END_OF_TEXT, PADDING, "<|im_start|>")
MOST_CHARACTERS = 2 << 20
"""The text that a tokenizer is trained on: the beginning of the data. Training takes about a second."""
LONG_WORD = re.compile(r"\S{100}")
PARALLEL = "TOKENIZERS_PARALLELISM"


def read_tokenizer(folder: str) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a folder, as `save_pretrained` writes it."""
    from transformers import AutoTokenizer

    check_tokenizer_folder(folder)
    place = Path(folder).expanduser()
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # `tokenizers` raises plain exceptions for a file that it cannot read
        raise BadField(
            "data.tokenizer",
            f"{folder} cannot be read: {fold_text(str(error), 300)}",
            means="the text cannot be turned into tokens",
            do="write the folder that tokenizer.save_pretrained(...) wrote",
        ) from error
    if not tokenizer.is_fast:
        raise BadField(
            "data.tokenizer",
            f"{folder} has a tokenizer that is written in Python",
            means="recipes need the positions of tokens in the text, which only a tokenizer.json gives",
            do="write a folder with a whole tokenizer in its tokenizer.json",
        )
    return cast("PreTrainedTokenizerFast", tokenizer)


def complete_tokenizer(tokenizer: "PreTrainedTokenizerFast", spec: DataSpec, task: Task) -> None:
    """Give the tokenizer what the task needs: a chat template, and a token for padding.

    Raises:
        BadInput: the tokenizer has no token that ends a text, or the template cannot be read.
    """
    if tokenizer.eos_token_id is None:
        raise BadInput(
            f"the tokenizer {spec.tokenizer} has no token that ends a text",
            means="documents could not be told from each other, and answers would never end",
            do="name the token and save the tokenizer again: tokenizer.eos_token = ...",
        )
    if spec.chat_template:
        tokenizer.chat_template = _read_template(spec.chat_template)
    elif task != "pretrain" and tokenizer.chat_template is None:
        tokenizer.chat_template = SIMPLE_TEMPLATE
    if task != "pretrain" and tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def _read_template(path: str) -> str:
    try:
        return read_bytes(Path(path).expanduser(), LARGEST_TEMPLATE_BYTES).decode()
    except (OSError, Malformed, UnicodeDecodeError) as error:
        raise BadField(
            "data.chat_template",
            f"{path} cannot be read: {error}",
            do="write the path of a file with a Jinja template",
        ) from error


def train_tokenizer(
    texts: Iterable[str], vocabulary: int, source: str = "the data"
) -> "PreTrainedTokenizerFast":
    """Return a tokenizer for texts, from the cache if it has it; see `MOST_CHARACTERS`.

    A short text has fewer tokens than ``vocabulary``; ``source`` names the texts in errors.
    """
    from transformers import PreTrainedTokenizerFast

    sample = list(_take_beginning(texts))
    if not any(text.strip() for text in sample):
        raise BadInput(
            f"{source} has no text to train a tokenizer on",
            means="the text cannot be turned into tokens",
            do="check data.path and the names of its fields, or name a folder: data.tokenizer",
        )
    path = _find_trained(sample, vocabulary)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(path), eos_token=END_OF_TEXT, pad_token=PADDING, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = SIMPLE_TEMPLATE
    return tokenizer


def _take_beginning(texts: Iterable[str]) -> Iterator[str]:
    left = MOST_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _find_trained(sample: list[str], vocabulary: int) -> Path:
    """Return the tokenizer.json for these texts, which is written at the first call."""
    sha = hashlib.sha256(f"{FORMAT} {vocabulary} {SPECIAL}".encode())
    for text in sample:
        encoded = text.encode(errors="surrogatepass")
        sha.update(f"{len(encoded)} ".encode() + encoded)
    folder = find_cache("recipes")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tokenizer-{sha.hexdigest()}.json"
    with lock_for_one(path.with_suffix(".lock")):
        if not path.exists():
            replace_file(path, _train(sample, vocabulary).encode(), durable=True)
    return path


def _train(sample: list[str], vocabulary: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    with _disable_threads():
        tokenizer.train_from_iterator(map(_prepare, sample), trainer)
    return str(tokenizer.to_str())


def _prepare(text: str) -> str:
    """Return text in UTF-8, with endless words cut: their square is the time of training."""
    return LONG_WORD.sub(r"\g<0> ", text.encode(errors="replace").decode())


@contextmanager
def _disable_threads() -> Iterator[None]:
    """Train without threads: `tokenizers` warns in every process that is forked after it has used them."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLEL]
        else:
            os.environ[PARALLEL] = before
