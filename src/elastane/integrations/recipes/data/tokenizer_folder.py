"""A tokenizer from a folder on this machine: nothing is downloaded, and no code of the folder runs."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from elastane.common.errors import BadField, BadInput
from elastane.common.safe_text import fold_text
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.integrations.recipes.data.conversation import SIMPLE_TEMPLATE
from elastane.integrations.recipes.data.spec import DataSpec, Task, check_tokenizer_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LARGEST_TEMPLATE_BYTES = 1 << 20


def read_tokenizer(folder: str) -> "PreTrainedTokenizerFast":
    """Return the tokenizer of a folder, as `save_pretrained` writes it.

    Raises:
        BadField: there is no such folder, or no tokenizer in it.
    """
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
