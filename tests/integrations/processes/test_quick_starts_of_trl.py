"""The quick starts of ``trl`` give the same bytes while workers join, die and leave."""

import json

import pytest

from tests.integrations.test_equality_with_trl import make_model, make_tokenizer
from tests.run.processes.stage import add_kill_and_drain_workers

from .test_trainers_of_transformers import MODULES, assert_trained_as

pytestmark = pytest.mark.processes

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model that chats, with conversations, and with pairs of answers."""
    folder = tmp_path_factory.mktemp("quick-start")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    for saved in (make_model(), tokenizer):
        saved.save_pretrained(folder / "model")
    chosen, rejected = ([converse(number, factor) for number in range(22)] for factor in (2, 3))
    write_lines(folder / "conversations.jsonl", [{"messages": messages} for messages in chosen])
    pairs = zip(chosen, rejected, strict=True)
    write_lines(folder / "pairs.jsonl", [{"chosen": one, "rejected": other} for one, other in pairs])
    return folder


def converse(number, factor):
    return [
        {"role": "user", "content": f"{number}+{number}="},
        {"role": "assistant", "content": f"{number * factor} ok"},
    ]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        pytest.param("sft", "full", marks=pytest.mark.long),
        ("sft", "lora"),
        ("dpo", "full"),
        pytest.param("dpo", "lora", marks=pytest.mark.long),
    ],
)
def test_a_quick_start_is_exact_while_workers_join_die_and_leave(stage, folder, task, kind):
    stage.preload(*MODULES)
    arguments = (str(folder), task, kind)
    options = {"script": "trl_quick_start.py", "virtual_ranks": 8, "max_workers": 4, "digest_every": 1}
    reference = stage.play(*arguments, **options)
    assert reference.outcome.code == 0, reference.describe()
    assert len(reference.losses) == 9
    ended = stage.play(*arguments, "2", **options, disturb=add_kill_and_drain_workers)
    assert_trained_as(ended, reference)
    assert len({line.generation for line in ended.run.ledger}) > 2
