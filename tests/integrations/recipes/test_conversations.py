"""The loss counts the tokens that the assistant writes, and no other token."""

import json

import pytest

from elastane.integrations.recipes.data.conversation import DATE, encode_conversation
from elastane.integrations.recipes.data.messages import BadSample
from elastane.integrations.recipes.data.samples import encode_sample
from elastane.integrations.recipes.data.spec import FieldNames

END = "<|endoftext|>"
PLAIN = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A template that does not mark its answers, as Llama's."""
THOUGHTFUL = (
    "{% for m in messages %}[{{ m['role'] }}]"
    "{% if loop.last and m['role'] == 'assistant' %}<think></think>{% endif %}"
    "{{ m['content'].split('</think>')[-1] }} {{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A template that writes more into the last answer, and cuts earlier ones, as Qwen's."""
TOOLED = (
    "{% if tools %}[tools]{% for t in tools %}{{ t['function']['name'] }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<{{ c['function']['name'] }}>{% endfor %}"
    "{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A template with tools."""
CLOCK = [{"type": "function", "function": {"name": "clock"}}]


def speak(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]


@pytest.fixture
def with_template(tokenizer):
    def choose(template):
        before = tokenizer.chat_template
        tokenizer.chat_template = template or before
        chosen.append(before)
        return tokenizer

    chosen = []
    yield choose
    if chosen:
        tokenizer.chat_template = chosen[0]


def show(tokenizer, sequence):
    """Return the text with its learned tokens in braces."""
    shown, inside = "", False
    for token, learned in zip(sequence.tokens, sequence.learned, strict=True):
        if learned != inside:
            shown, inside = shown + ("{" if learned else "}"), learned
        shown += tokenizer.decode([token])
    return shown + ("}" if inside else "")


def test_the_simple_template_learns_each_answer_and_its_end(tokenizer):
    sequence = encode_conversation(tokenizer, speak("Hi", "Yes.", "And?", " no "))
    assert show(tokenizer, sequence) == (
        f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\n{{Yes.{END}}}\n"
        f"<|im_start|>user\nAnd?{END}\n<|im_start|>assistant\n{{ no {END}}}\n"
    )


def test_a_template_without_marks_learns_the_same_tokens(with_template):
    tokenizer = with_template(PLAIN)
    sequence = encode_conversation(tokenizer, speak("Yes.", "Yes.", "Yes.", "zażółć 😀"))
    assert show(tokenizer, sequence).replace("\ufffd", "") == show_text(
        tokenizer,
        f"[user]Yes.{END}\n[assistant]{{Yes.{END}}}\n[user]Yes.{END}\n[assistant]{{zażółć 😀{END}}}\n",
    )


def show_text(tokenizer, text):
    """Return a text as `show` shows it: characters of several tokens are not decodable one by one."""
    return "".join(character for character in text if character.isascii())


def test_what_the_template_adds_to_an_answer_is_learned_too(with_template):
    tokenizer = with_template(THOUGHTFUL)
    sequence = encode_conversation(tokenizer, speak("a", "bcd", "e", "fgh"))
    assert show(tokenizer, sequence) == (
        f"[user]a {END}[assistant]{{bcd}} {{{END}}}[user]e {END}[assistant]{{<think></think>fgh}} {{{END}}}"
    )


def test_an_answer_that_the_template_cuts_is_refused(with_template):
    tokenizer = with_template(THOUGHTFUL)
    with pytest.raises(BadSample, match="the chat template rewrites message 2"):
        encode_conversation(tokenizer, speak("a", "hm</think>bcd", "e", "fgh"))


def test_messages_that_the_template_refuses_are_a_bad_sample(with_template):
    tokenizer = with_template("{{ raise_exception('roles must alternate\nhere') }}")
    with pytest.raises(BadSample, match="the chat template refuses the messages: roles must alternate here"):
        encode_conversation(tokenizer, speak("a", "b"))


@pytest.mark.parametrize("clock", ["{{ strftime_now('%Y') }}", "{{ date_string }}"])
def test_tokens_do_not_depend_on_the_day(with_template, clock):
    tokenizer = with_template(clock + PLAIN)
    sequence = encode_conversation(tokenizer, speak("a", "b"))
    assert show(tokenizer, sequence).startswith(DATE)


def test_a_template_cannot_run_code(with_template):
    tokenizer = with_template("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(BadSample, match="the chat template refuses the messages"):
        encode_conversation(tokenizer, speak("a", "b"))


def call_clock():
    (question,) = speak("when?")
    answer = {"role": "tool", "content": "noon"}
    return [question, {"role": "assistant", "tool_calls": CLOCK}, answer, *speak("", "At noon.")[1:]]


@pytest.mark.parametrize("tools", [CLOCK, json.dumps(CLOCK)])
def test_the_chat_template_gets_the_tools_and_the_model_learns_their_calls(with_template, tools):
    tokenizer = with_template(TOOLED)
    (sequence,) = encode(tokenizer, "finetune", messages=call_clock(), tools=tools)
    assert show(tokenizer, sequence) == (
        f"[tools]clock[user]when?{END}\n[assistant]{{<clock>{END}}}\n[tool]noon{END}\n"
        f"[assistant]{{At noon.{END}}}\n"
    )


def test_a_pair_of_answers_has_its_tools(with_template):
    tokenizer = with_template(TOOLED)
    row = {"prompt": "when?", "chosen": speak("", "b")[1:], "rejected": speak("", "c")[1:], "tools": CLOCK}
    for sequence in encode(tokenizer, "preference", **row):
        assert show(tokenizer, sequence).startswith("[tools]clock[user]when?")


@pytest.mark.parametrize(
    ("template", "row", "words"),
    [
        (
            PLAIN,
            {"messages": speak("a", "b"), "tools": CLOCK},
            "it has tools, which the chat template ignores",
        ),
        (PLAIN, {"messages": call_clock()}, "it has tool_calls, which the chat template ignores"),
        (TOOLED, {"messages": speak("a", "b"), "tools": "{"}, "'tools' is not a list of tools"),
        (TOOLED, {"messages": speak("a", "b"), "tools": ["clock"]}, "'tools' is not a list of tools"),
        (TOOLED, {"prompt": "a", "completion": "b", "tools": CLOCK}, "which no chat template sees"),
    ],
)
def test_tools_that_the_model_would_not_see_are_a_bad_sample(with_template, template, row, words):
    with pytest.raises(BadSample, match=words):
        encode(with_template(template), "finetune", **row)


def test_a_misspelt_role_is_a_bad_sample_unless_the_template_knows_it(with_template):
    messages = [*speak("a"), {"role": "asistant", "content": "b"}]
    with pytest.raises(BadSample, match="message 2 has the unknown role 'asistant'; it may be 'assistant'"):
        encode_conversation(with_template(PLAIN), messages)
    known = "{% if m['role'] == 'asistant' %}!{% endif %}"
    tokenizer = with_template("{% for m in messages %}" + known + "{% endfor %}" + PLAIN)
    assert not any(encode_conversation(tokenizer, messages).learned)


def encode(tokenizer, task, **row):
    return encode_sample(tokenizer, task, FieldNames(), row)


def test_a_completion_follows_its_prompt_and_is_learned_with_its_end(tokenizer):
    (sequence,) = encode(tokenizer, "finetune", prompt="2+2=", completion="4")
    assert show(tokenizer, sequence) == f"2+2={{4{END}}}"


def test_of_a_prompt_of_messages_no_answer_is_learned(tokenizer):
    (sequence,) = encode(tokenizer, "finetune", prompt=speak("a", "b", "c"), completion=speak("", "d")[1:])
    assert show(tokenizer, sequence).count("{") == 1
    assert f"{{d{END}}}" in show(tokenizer, sequence)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": speak("a"), "chosen": speak("", "b")[1:], "rejected": speak("", "c")[1:]},
        {"prompt": "a", "chosen": speak("", "b")[1:], "rejected": speak("", "c")[1:]},
        {"chosen": speak("a", "b"), "rejected": speak("a", "c")},
    ],
)
def test_a_pair_may_have_its_prompt_in_several_ways(tokenizer, row):
    chosen, rejected = encode(tokenizer, "preference", **row)
    before = f"<|im_start|>user\na{END}\n<|im_start|>assistant\n"
    assert show(tokenizer, chosen) == f"{before}{{b{END}}}\n"
    assert show(tokenizer, rejected) == f"{before}{{c{END}}}\n"


def test_a_pair_of_texts_is_as_it_is(tokenizer):
    chosen, rejected = encode(tokenizer, "preference", prompt="a", chosen="b", rejected="c")
    assert [show(tokenizer, chosen), show(tokenizer, rejected)] == [f"a{{b{END}}}", f"a{{c{END}}}"]


@pytest.mark.parametrize(
    ("task", "row", "words"),
    [
        ("finetune", {"mesages": []}, "has the fields mesages, not 'messages'.*'messages' may be 'mesages'"),
        ("finetune", {"prompt": "a"}, "has the fields prompt, not"),
        ("finetune", {"messages": []}, "'messages' is not a list of messages"),
        ("finetune", {"messages": "a"}, "'messages' is not a list of messages"),
        ("finetune", {"messages": [{"role": "user"}]}, "message 1 of 'messages' has no text"),
        ("finetune", {"messages": [{"role": "user", "content": 3}]}, "message 1 of 'messages' has no text"),
        (
            "finetune",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "a list of parts as its content; a recipe trains on text only",
        ),
        ("finetune", {"messages": [{"role": "gpt", "content": "a"}]}, "unknown role 'gpt'; the roles are"),
        ("finetune", {"messages": [3]}, "message 1 of 'messages' has no text"),
        ("finetune", {"messages": speak("a")}, "no answer that the model could learn"),
        ("finetune", {"prompt": "a", "completion": ""}, "no answer that the model could learn"),
        ("finetune", {"prompt": "a", "completion": 3}, "neither two texts nor two lists"),
        ("preference", {"prompt": "a", "choosen": "b"}, "'chosen' may be 'choosen'"),
        ("preference", {"chosen": "b", "rejected": "c"}, "has the fields chosen, rejected, not 'prompt'"),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal"),
        ("preference", {"chosen": speak("a", "b"), "rejected": speak("a", "b")}, "is not a list of messages"),
        ("preference", {"prompt": "a", "chosen": "b", "rejected": speak("c")}, "neither two texts"),
    ],
)
def test_a_row_that_is_not_a_sample_says_why(tokenizer, task, row, words):
    with pytest.raises(BadSample, match=words):
        encode(tokenizer, task, **row)


@pytest.mark.parametrize(
    ("row", "question"),
    [
        ({"instruction": "add", "input": "1 2", "output": "3"}, "add\n\n1 2"),
        ({"instruction": "add 1 and 2", "input": "", "output": "3"}, "add 1 and 2"),
        ({"instruction": "add 1 and 2", "output": "3"}, "add 1 and 2"),
    ],
)
def test_rows_as_of_alpaca_are_conversations(with_template, row, question):
    tokenizer = with_template(PLAIN)
    (found,) = encode_sample(tokenizer, "finetune", FieldNames(), row)
    assert found == encode_conversation(tokenizer, speak(question, "3"))


@pytest.mark.parametrize("row", [{"instruction": "add"}, {"instruction": 1, "output": "3"}])
def test_rows_with_a_part_of_alpaca_are_refused(with_template, row):
    with pytest.raises(BadSample, match="it has the fields instruction"):
        encode_sample(with_template(PLAIN), "finetune", FieldNames(), row)
