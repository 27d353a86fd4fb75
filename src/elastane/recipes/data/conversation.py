"""The tokens of a conversation, and which of them the model learns to write.

The chat template of the tokenizer turns messages into text. A template that marks the answers itself, with
``{% generation %}``, decides which tokens are learned. For any other template the answers are found in the
text: each begins where the template would ask the model to write, and ends with the end-of-turn token after
its content.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from elastane.api.safe_text import fold_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ASSISTANT = "assistant"
DATE = "2026-01-01"
"""The date of today in templates that mention it: tokens must not depend on the day of the run."""
FIXED_CLOCK = "{% macro strftime_now(format) %}" + DATE + "{% endmacro %}"
"""Takes the place of the function with which a template asks for the date."""
MARK = re.compile(r"{%-?\s*generation\b")

SIMPLE_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template of tokenizers without one: an answer ends with the token that ends a text."""


class BadSample(ValueError):
    """A row is not a sample of its task; the message gives the reason."""


class TokenSequence(msgspec.Struct, frozen=True):
    """Tokens, and for each whether the model learns to write it."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]

    def cut(self, longest: int) -> "TokenSequence":
        """Return the first ``longest`` tokens."""
        return TokenSequence(self.tokens[:longest], self.learned[:longest])

    @property
    def targets(self) -> int:
        """The number of tokens that the model learns; the first token follows nothing, so it is never one."""
        return sum(self.learned[1:])


def check_messages(messages: object, field: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    Raises:
        BadSample: they are something else.
    """
    if not isinstance(messages, list) or not messages:
        raise BadSample(f"{field!r} is not a list of messages")
    for number, message in enumerate(messages, start=1):
        texts = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise BadSample(f"message {number} of {field!r} has no text under 'role' and 'content'")
    return messages


def encode_conversation(
    tokenizer: "PreTrainedTokenizerFast", messages: Sequence[dict[str, Any]], first: int = 0
) -> TokenSequence:
    """Return the tokens of a conversation; the model learns the messages of the assistant.

    Args:
        tokenizer: has a chat template.
        messages: of the conversation.
        first: the position of the first message that is learned.

    Raises:
        BadSample: the template refuses the messages, or the answers cannot be found in its text.
    """
    # The marks of a template mark all answers.
    if MARK.search(tokenizer.get_chat_template()) and first == 0:
        encoded = _render(
            tokenizer, messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return TokenSequence(tuple(encoded["input_ids"]), tuple(map(bool, encoded["assistant_masks"])))
    text = _render(tokenizer, messages, tokenize=False)
    return _mark_answers(tokenizer, text, _find_answers(tokenizer, text, messages, first))


def _render(tokenizer: "PreTrainedTokenizerFast", messages: Sequence[dict[str, Any]], **options: Any) -> Any:
    from jinja2 import TemplateError

    try:
        template = FIXED_CLOCK + tokenizer.get_chat_template()
        return tokenizer.apply_chat_template(
            list(messages), chat_template=template, date_string=DATE, **options
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise BadSample(f"the chat template refuses the messages: {fold_text(str(error), 200)}") from error


def _find_answers(
    tokenizer: "PreTrainedTokenizerFast", text: str, messages: Sequence[dict[str, Any]], first: int
) -> list[tuple[int, int]]:
    """Return the positions of the answers in the text, from where the model begins to write."""
    answers: list[tuple[int, int]] = []
    limit = len(text)
    for number in reversed(range(first, len(messages))):
        if messages[number]["role"] != ASSISTANT:
            continue
        before = _render(tokenizer, messages[:number], tokenize=False, add_generation_prompt=True)
        content = messages[number]["content"].strip()
        found = text.find(content, len(before), limit) if text.startswith(before) else -1
        if found < 0:
            raise BadSample(f"the chat template rewrites message {number + 1}, so its tokens cannot be found")
        answers.append((len(before), found + len(content)))
        limit = len(before)
    return answers[::-1]


def _mark_answers(
    tokenizer: "PreTrainedTokenizerFast", text: str, answers: Sequence[tuple[int, int]]
) -> TokenSequence:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens, places = encoded["input_ids"], encoded["offset_mapping"]
    learned = [any(begin <= start and stop <= end for begin, end in answers) for start, stop in places]
    special = set(tokenizer.added_tokens_decoder)
    for _, end in answers:
        number = bisect_left(places, (end, 0))
        # A template may write white space before the token that ends the turn.
        while number < len(tokens) and not text[end : places[number][1]].strip():
            number += 1
        if number < len(tokens) and tokens[number] in special and not text[end : places[number][0]].strip():
            learned[number] = True
    return TokenSequence(tuple(tokens), tuple(learned))
