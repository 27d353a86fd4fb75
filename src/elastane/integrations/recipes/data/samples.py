"""The token sequences of one row: an answer for fine-tuning, a pair of answers for preferences."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from elastane.common.safe_text import escape_line
from elastane.integrations.recipes.data.conversation import TokenSequence, encode_conversation
from elastane.integrations.recipes.data.messages import BadSample, check_messages, read_tools
from elastane.integrations.recipes.data.spec import FieldNames, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def encode_sample(
    tokenizer: "PreTrainedTokenizerFast", task: Task, names: FieldNames, row: Mapping[str, Any]
) -> tuple[TokenSequence, ...]:
    """Return the sequences of a row: one for fine-tuning; the chosen and the rejected one for preferences.

    Texts of a prompt and an answer follow each other as they are, and the end of the text is part of the
    answer. Lists of messages pass through the chat template.

    Raises:
        BadSample: the row has other fields, or nothing to learn.
    """
    sequences: tuple[TokenSequence, ...]
    if task == "preference":
        sequences = _encode_pair(tokenizer, names, row)
        if sequences[0] == sequences[1]:
            raise BadSample(f"{names.chosen!r} and {names.rejected!r} are equal")
    else:
        sequences = (_encode_answer(tokenizer, names, row),)
    if not all(sequence.targets for sequence in sequences):
        raise BadSample("it has no answer that the model could learn")
    return sequences


def _encode_answer(
    tokenizer: "PreTrainedTokenizerFast", names: FieldNames, row: Mapping[str, Any]
) -> TokenSequence:
    tools = read_tools(row.get(names.tools), names.tools)
    if row.get(names.messages) is not None:
        messages = check_messages(row[names.messages], names.messages)
        return encode_conversation(tokenizer, messages, tools=tools)
    if (conversation := _read_alpaca(names, row)) is not None:
        return encode_conversation(tokenizer, check_messages(conversation, "instruction"), tools=tools)
    if row.get(names.prompt) is None or row.get(names.completion) is None:
        raise _build_fields_error(row, (names.messages, names.prompt, names.completion), FINETUNE_FIELDS)
    fields = (names.prompt, names.completion)
    return _join(tokenizer, row[names.prompt], row[names.completion], fields, tools)


def _read_alpaca(names: FieldNames, row: Mapping[str, Any]) -> list[Any] | None:
    """Return the messages of a row as of Alpaca: ``instruction``, ``input`` and ``output``; None: another."""
    instruction, more, answer = (row.get(name) for name in ALPACA_FIELDS)
    has_others = row.get(names.prompt) is not None or row.get(names.completion) is not None
    if has_others or not isinstance(instruction, str) or not isinstance(answer, str):
        return None
    question = f"{instruction}\n\n{more}" if isinstance(more, str) and more else instruction
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _encode_pair(
    tokenizer: "PreTrainedTokenizerFast", names: FieldNames, row: Mapping[str, Any]
) -> tuple[TokenSequence, TokenSequence]:
    chosen, rejected = row.get(names.chosen), row.get(names.rejected)
    if chosen is None or rejected is None:
        raise _build_fields_error(row, (names.prompt, names.chosen, names.rejected), PREFERENCE_FIELDS)
    prompt = row.get(names.prompt)
    if isinstance(chosen, list) and isinstance(rejected, list):
        if prompt is None:
            prompt, chosen, rejected = _split_common_messages(chosen, rejected)
        elif isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
    elif prompt is None:
        raise _build_fields_error(row, (names.prompt,), PREFERENCE_FIELDS)
    tools = read_tools(row.get(names.tools), names.tools)
    return (
        _join(tokenizer, prompt, chosen, (names.prompt, names.chosen), tools),
        _join(tokenizer, prompt, rejected, (names.prompt, names.rejected), tools),
    )


def _split_common_messages(chosen: list[Any], rejected: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Split the messages with which both conversations begin from the rest of each."""
    common = 0
    while common < min(len(chosen), len(rejected)) and chosen[common] == rejected[common]:
        common += 1
    return chosen[:common], chosen[common:], rejected[common:]


def _join(
    tokenizer: "PreTrainedTokenizerFast",
    prompt: object,
    answer: object,
    fields: tuple[str, str],
    tools: list[Any] | None,
) -> TokenSequence:
    """Return the tokens of a prompt and of the answer, which is learned."""
    if isinstance(prompt, str) and isinstance(answer, str):
        if tools:
            raise BadSample("it has tools, but texts in place of messages, which no chat template sees")
        return _join_texts(tokenizer, prompt, answer)
    if isinstance(prompt, list) and isinstance(answer, list):
        messages = [
            *(check_messages(prompt, fields[0]) if prompt else []),
            *check_messages(answer, fields[1]),
        ]
        return encode_conversation(tokenizer, messages, first=len(prompt), tools=tools)
    raise BadSample(f"{fields[0]!r} and {fields[1]!r} are neither two texts nor two lists of messages")


def _join_texts(tokenizer: "PreTrainedTokenizerFast", prompt: str, answer: str) -> TokenSequence:
    # A tokenizer that begins each text with a token, as Llama's, does so for an empty text, too.
    begin = [token for token in tokenizer("")["input_ids"][:1] if token == tokenizer.bos_token_id]
    before = begin + tokenizer(prompt, add_special_tokens=False)["input_ids"]
    after = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if not after:
        raise BadSample("it has no answer that the model could learn")
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    learned = [False] * len(before) + [True] * (len(after) + len(end))
    return TokenSequence((*before, *after, *end), tuple(learned))


ALPACA_FIELDS = ("instruction", "input", "output")
FINETUNE_FIELDS = "'messages', or 'prompt' and 'completion', or 'instruction' and 'output'"
PREFERENCE_FIELDS = "'prompt', 'chosen' and 'rejected'"


def _build_fields_error(row: Mapping[str, Any], wanted: Sequence[str], needed: str) -> BadSample:
    present = [escape_line(name, 40) for name in list(row)[:20]]
    near = [
        f"; {name!r} may be {found[0]!r}"
        for name in wanted
        if name not in row and (found := get_close_matches(name, present, n=1))
    ]
    return BadSample(f"it has the fields {', '.join(present) or 'none'}, not {needed}{''.join(near)}")
