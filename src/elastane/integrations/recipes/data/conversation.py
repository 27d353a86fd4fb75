"""The tokens of a conversation, and which of them the model learns to write.

The chat template of the tokenizer turns messages into text. A template that marks the answers itself, with
``{% generation %}``, decides which tokens are learned. For any other template the answers are found in the
text: each begins where the template would ask the model to write, and ends with the end-of-turn token after
its content. Calls of tools are learned up to the end of their message.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from elastane.common.safe_text import fold_text
from elastane.integrations.recipes.data.messages import (
    ASSISTANT,
    BadSample,
    check_roles,
    check_tool_support,
    has_calls,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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


def encode_conversation(
    tokenizer: "PreTrainedTokenizerFast",
    messages: Sequence[dict[str, Any]],
    first: int = 0,
    tools: list[Any] | None = None,
) -> TokenSequence:
    """Return the tokens of a conversation; the model learns the messages of the assistant from ``first`` on.

    Raises:
        BadSample: the template refuses the messages, or the answers cannot be found in its text.
    """
    rendering = _Rendering(tokenizer, tools)
    check_roles(messages, rendering.template)
    check_tool_support(messages, tools, rendering.template)
    # The marks of a template mark all answers.
    if MARK.search(rendering.template) and first == 0:
        encoded = rendering.render(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return TokenSequence(tuple(encoded["input_ids"]), tuple(map(bool, encoded["assistant_masks"])))
    text = rendering.render(messages)
    return _mark_answers(tokenizer, text, _find_answers(rendering, text, messages, first))


class _Rendering:
    """Turns messages into text, or tokens, with the template for these tools."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", tools: list[Any] | None) -> None:
        self._tokenizer, self._tools = tokenizer, tools
        self.template = tokenizer.get_chat_template(tools=tools)

    def render(self, messages: Sequence[dict[str, Any]], *, tokenize: bool = False, **options: Any) -> Any:
        from jinja2 import TemplateError

        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=self._tools,
                chat_template=FIXED_CLOCK + self.template,
                date_string=DATE,
                tokenize=tokenize,
                **options,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise BadSample(
                f"the chat template refuses the messages: {fold_text(str(error), 200)}"
            ) from error


def _find_answers(
    rendering: _Rendering, text: str, messages: Sequence[dict[str, Any]], first: int
) -> list[tuple[int, int]]:
    """Return the positions of the answers in the text, from where the model begins to write."""
    answers: list[tuple[int, int]] = []
    limit = len(text)
    for number in reversed(range(first, len(messages))):
        if messages[number]["role"] != ASSISTANT:
            continue
        before = rendering.render(messages[:number], add_generation_prompt=True)
        end = -1
        if text.startswith(before):
            end = _find_end(rendering, text, messages[: number + 1], range(len(before), limit))
        if end < 0:
            raise BadSample(f"the chat template rewrites message {number + 1}, so its tokens cannot be found")
        answers.append((len(before), end))
        limit = len(before)
    return answers[::-1]


def _find_end(rendering: _Rendering, text: str, messages: Sequence[dict[str, Any]], place: range) -> int:
    """Return where the last of these messages ends in the text of all, within a place; negative: nowhere."""
    if has_calls(messages[-1]):
        # The template writes the calls in a way of its own, so take all of the message.
        upto = rendering.render(messages).rstrip()
        return len(upto) if text.startswith(upto) and len(upto) in place[1:] else -1
    content = messages[-1]["content"].strip()
    found = text.find(content, place.start, place.stop)
    return found + len(content) if found >= 0 else -1


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
