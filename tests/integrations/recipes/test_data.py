"""The data of recipes: every format, no sample lost or repeated, and bad input is named with its place."""

import dataclasses
import json
import multiprocessing
import pickle
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from elastane.common.errors import BadInput
from elastane.integrations.recipes.data import encoded_samples, open_data, standard_library
from elastane.integrations.recipes.data.held_out import choose_held_out, hold_out
from elastane.integrations.recipes.data.open_data import ROUNDED, load_tokenizer
from elastane.integrations.recipes.data.spec import DataSpec, FieldNames, check_data

CHAT = [
    {"messages": [{"role": "user", "content": "a" * n}, {"role": "assistant", "content": "b" * n}]}
    for n in range(1, 11)
]
PAIRS = [{"prompt": "q" * n, "chosen": "good" * n, "rejected": "bad" * n} for n in range(1, 11)]
TEXTS = [{"text": f"{n} bottles of beer on the wall. " * 4} for n in range(30)]


def open_rows(path, tokenizer, task="finetune", context=64, **options):
    spec = DataSpec(path=str(path), **({"held_out": 0} | options))
    return open_data.open_data(spec, tokenizer, task, context)


def save_table(tmp_path, rows, kind):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    table = datasets.Dataset.from_list(rows)
    if kind == "parquet":
        table.to_parquet(tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"
    if kind == "datasets":
        table.save_to_disk(tmp_path / "saved", num_shards=3)
    else:
        parts = datasets.DatasetDict({"train": table, "test": table.select(range(2))})
        parts.save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


# -- pretraining -------------------------------------------------------------------------------------------


def read_windows(data):
    assert all(
        np.array_equal(inputs[1:], targets[:-1])
        for inputs, targets in map(data.__getitem__, range(len(data)))
    )
    return [int(token) for index in range(len(data)) for token in data[index][0]]


def expect_tokens(tokenizer, context):
    tokens = []
    for row in TEXTS:
        tokens += tokenizer(row["text"])["input_ids"] + [tokenizer.eos_token_id]
    return tokens[: (len(tokens) - 1) // context * context]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets", "parts"])
def test_windows_have_every_token_once_in_every_format(tmp_path, tokenizer, write_rows, monkeypatch, kind):
    path = write_rows(*TEXTS) if kind == "jsonl" else save_table(tmp_path, TEXTS, kind)
    # The extra for recipes does not install it.
    monkeypatch.setitem(sys.modules, "datasets", None)
    data = open_rows(path, tokenizer, "pretrain", 16)
    assert read_windows(data.train) == expect_tokens(tokenizer, 16)
    assert data.held_out is None
    assert data.summary == f"{len(data.train)} windows of 16 tokens"


def test_a_folder_means_its_files_in_order(tmp_path, tokenizer):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, row in enumerate(TEXTS):
        (folder / f"{number:02}.txt").write_text(row["text"])
    assert read_windows(open_rows(folder, tokenizer, "pretrain", 16).train) == expect_tokens(tokenizer, 16)


def test_tokens_of_a_file_are_taken_as_they_are(tmp_path, tokenizer):
    tokens = np.arange(200, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", tokens.astype(np.int32))
    for name in ("a.bin", "b.npy"):
        assert read_windows(open_rows(tmp_path / name, tokenizer, "pretrain", 16).train) == list(range(192))


def test_several_files_of_tokens_follow_each_other(tmp_path, tokenizer):
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name, first in (("b.bin", 100), ("a.bin", 0)):
        np.arange(first, first + 100, dtype=np.uint16).tofile(folder / name)
    data = open_rows(folder, tokenizer, "pretrain", 16)
    assert read_windows(data.train) == [*range(96), *range(100, 196)]
    one = open_rows(folder / "a.bin", tokenizer, "pretrain", 16)
    assert data.train.fingerprint() != one.train.fingerprint()
    assert (
        open_rows(f"{folder}/*.bin", tokenizer, "pretrain", 16).train.fingerprint()
        == data.train.fingerprint()
    )
    with pytest.raises(IndexError):
        data.train[12]
    np.full(100, 9999, np.uint16).tofile(folder / "c.bin")
    with pytest.raises(BadInput, match=r"c.bin has the token 9999"):
        open_rows(folder, tokenizer, "pretrain", 16)


def test_a_batch_of_windows_has_no_mask(tokenizer, write_rows):
    data = open_rows(write_rows(*TEXTS), tokenizer, "pretrain", 16)
    batch = data.collate([data.train[0], data.train[3]])
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        "input_ids": (2, 16),
        "targets": (2, 16),
    }


# -- fine-tuning and preferences ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets", "parts"])
@pytest.mark.parametrize("task", ["finetune", "preference"])
def test_every_row_is_one_sample_in_every_format(tmp_path, tokenizer, write_rows, kind, task):
    rows = CHAT if task == "finetune" else PAIRS
    path = write_rows(*rows) if kind == "jsonl" else save_table(tmp_path, rows, kind)
    data = open_rows(path, tokenizer, task)
    assert len(data.train) == len(rows)
    for index, row in enumerate(rows):
        written = [tokenizer.decode(targets[targets != -100]) for targets in data.train[index][1::2]]
        answers = [row["messages"][1]["content"]] if task == "finetune" else [row["chosen"], row["rejected"]]
        assert written == [answer + "<|endoftext|>" for answer in answers]


def test_fields_may_have_other_names(tokenizer, write_rows):
    rows = [{"dialogue": row["messages"], "id": 7} for row in CHAT]
    data = open_rows(write_rows(*rows), tokenizer, fields=FieldNames(messages="dialogue"))
    assert len(data.train) == len(CHAT)


def test_a_batch_is_padded_to_its_longest_sample(tokenizer, write_rows):
    data = open_rows(write_rows(*CHAT), tokenizer)
    batch = data.collate([data.train[0], data.train[9]])
    lengths = [len(data.train[index][0]) for index in (0, 9)]
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert batch["input_ids"].shape[1] == -(-max(lengths) // ROUNDED) * ROUNDED
    padded = batch["attention_mask"] == 0
    assert (batch["targets"][padded] == -100).all()
    assert (batch["input_ids"][padded] == tokenizer.pad_token_id).all()
    assert batch["input_ids"][0, : lengths[0]].tolist() == data.train[0][0].tolist()


def test_a_batch_of_pairs_has_the_chosen_sequences_first(tokenizer, write_rows):
    data = open_rows(write_rows(*PAIRS), tokenizer, "preference")
    batch = data.collate([data.train[0], data.train[1]])
    texts = [tokenizer.decode(row[row != -100]) for row in batch["targets"]]
    assert texts == [text + "<|endoftext|>" for text in ("good", "goodgood", "bad", "badbad")]


def test_longer_samples_are_truncated_dropped_or_refused(tokenizer, write_rows):
    path = write_rows(*PAIRS)
    data = open_rows(path, tokenizer, "preference", 20)
    assert data.summary == "10 samples, 6 of them truncated to 20 tokens"
    assert max(len(part) for index in range(10) for part in data.train[index]) == 20
    dropped = open_rows(path, tokenizer, "preference", 20, too_long="drop")
    assert (len(dropped.train), dropped.summary) == (4, "4 samples, 6 longer ones dropped")
    with pytest.raises(BadInput, match=r"line 5: it has 25 tokens, more than the context of 20;"):
        open_rows(path, tokenizer, "preference", 20, too_long="refuse")


def test_a_sample_with_its_answer_behind_the_context_is_refused(tokenizer, write_rows):
    path = write_rows({"prompt": "a", "completion": "b"}, {"prompt": "a" * 30, "completion": "b"})
    with pytest.raises(BadInput, match=r"line 2: it has 31 tokens.*its answer begins after them"):
        open_rows(path, tokenizer, context=20)
    assert len(open_rows(path, tokenizer, context=20, too_long="drop").train) == 1


def test_samples_are_encoded_once_and_again_after_a_change(tokenizer, write_rows, monkeypatch):
    encoded = []
    encode = encoded_samples.encode_sample
    monkeypatch.setattr(encoded_samples, "encode_sample", lambda *args: encoded.append(args) or encode(*args))
    path = write_rows(*CHAT, {"prompt": "unique", "completion": "row"})
    first = open_rows(path, tokenizer).train.fingerprint()
    assert open_rows(path, tokenizer).train.fingerprint() == first
    assert len(encoded) == len(CHAT) + 1
    others = [
        open_rows(path, tokenizer, context=63),
        open_rows(path, tokenizer, too_long="drop"),
        open_rows(write_rows(*CHAT, {"prompt": "another", "completion": "row"}), tokenizer),
    ]
    assert len({first, *(data.train.fingerprint() for data in others)}) == 4


def test_another_template_gives_other_samples(tmp_path, tokenizer, write_rows):
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    spec = DataSpec(path=write_rows(*CHAT), chat_template=str(tmp_path / "t.jinja"), vocabulary=300)
    assert tokenizer.decode(
        open_data.open_data(spec, load_tokenizer(spec, "finetune"), "finetune", 64).train[0][0]
    )
    assert load_tokenizer(spec, "finetune").chat_template.startswith("{% for m in")


def test_a_pickled_dataset_is_small_and_the_same(tokenizer, write_rows):
    data = open_rows(write_rows(*CHAT), tokenizer, held_out=0.2)
    pickled = pickle.dumps(data.train)
    assert len(pickled) < 3000
    copy = pickle.loads(pickled)  # noqa: S301 - our own bytes
    assert copy.fingerprint() == data.train.fingerprint()
    assert all(np.array_equal(a, b) for a, b in zip(copy[3], data.train[3], strict=True))


def _open_in_process(path, tokenizer):
    data = open_rows(path, tokenizer)
    assert len(data.train) == 300


def test_several_workers_that_open_the_data_at_once_make_one_file(tokenizer, write_rows, recipe_cache):
    path = write_rows(*({"prompt": str(n), "completion": "abc"} for n in range(300)))
    before = set(recipe_cache.glob("samples-*"))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_open_in_process, args=(path, tokenizer)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    assert len({one for one in recipe_cache.glob("samples-*") if one.is_dir()} - before) == 1


# -- held out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "fraction"), [(2, 0.02), (10, 0.3), (97, 0.5), (1000, 0.02), (7, 0.9)])
def test_held_out_samples_are_spread_and_no_sample_is_lost_or_repeated(samples, fraction):
    class Numbers:
        def __len__(self):
            return samples

        def __getitem__(self, index):
            return index

        def fingerprint(self):
            return "numbers"

    train, held_out = hold_out(Numbers(), fraction)
    kept = [train[index] for index in range(len(train))]
    held = [held_out[index] for index in range(len(held_out))]
    assert sorted(kept + held) == list(range(samples))
    assert kept == sorted(kept)
    assert held == choose_held_out(samples, fraction).tolist()
    assert len(held) == max(1, round(samples * fraction))
    assert max(np.diff([-1, *held, samples])) <= samples // len(held) + 1
    assert train.fingerprint() != held_out.fingerprint()
    with pytest.raises(IndexError):
        train[len(train)]


def test_held_out_samples_may_come_from_other_data(tokenizer, write_rows):
    other = write_rows(*CHAT[:3], name="other.jsonl")
    data = open_rows(write_rows(*CHAT), tokenizer, held_out=other)
    assert (len(data.train), len(data.held_out)) == (10, 3)


def test_one_sample_cannot_be_divided(tokenizer, write_rows):
    with pytest.raises(BadInput, match="1 of 1 samples are held out"):
        open_rows(write_rows(CHAT[0]), tokenizer, held_out=0.1)


# -- no data at all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "least"), [("pretrain", 1500), ("finetune", 400), ("preference", 400)])
def test_a_recipe_without_data_has_that_of_the_standard_library(task, least):
    spec = DataSpec(vocabulary=512)
    tokenizer = load_tokenizer(spec, task)
    data = open_data.open_data(spec, tokenizer, task, 256)
    assert len(data.train) + len(data.held_out) > least
    batch = data.collate([data.held_out[0], data.held_out[1]])
    assert (batch["targets"] != -100).sum(1).min() > 5
    assert len(tokenizer) == 512


def test_data_of_the_standard_library_is_the_same_in_every_process(monkeypatch, tmp_path):
    digests = set()
    for name in ("a", "b"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        path = standard_library.write_standard_library("preference")
        digests.add((path.name, path.read_bytes()))
    assert len(digests) == 1
    row = json.loads(path.read_text().splitlines()[0])
    # Another version of the module that makes the data makes it again.
    copy = tmp_path / "standard_library.py"
    copy.write_text(Path(standard_library.__file__).read_text() + "\n")
    monkeypatch.setattr(standard_library, "__file__", str(copy))
    assert standard_library.write_standard_library("preference").name != path.name
    assert sorted(row["chosen"][0]["content"].split()) == sorted(row["rejected"][0]["content"].split())


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "content", "words"),
    [
        ("finetune", b'{"messages": []}\n', r"rows.jsonl: line 1: 'messages' is not a list"),
        ("finetune", b'{"prompt": "a", "completion": "b"}\n{"prompt":\n', r"rows.jsonl: line 2: "),
        ("finetune", b'{"promt": "a", "completion": "b"}\n', r"line 1: .*'prompt' may be 'promt'"),
        ("finetune", b"\n\n", r"rows.jsonl has no sample: no row"),
        ("finetune", b"\x80\x04pickle", r"rows.jsonl: line 1: "),
        ("finetune", b"[" * 100_000, r"rows.jsonl: line 1: it is nested too deeply"),
        ("preference", b'{"prompt": "a", "chosen": "b"}\n', r"line 1: it has the fields prompt, chosen, not"),
        ("pretrain", b'{"body": "a"}\n', r"no text under 'text': line 1 has the fields body"),
        ("pretrain", b'{"text": "a"}\n', r"rows.jsonl has 2 tokens"),
        ("pretrain", b"", r"rows.jsonl has 0 tokens"),
    ],
)
def test_bad_rows_are_named_and_leave_nothing(tmp_path, tokenizer, task, content, words):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with pytest.raises(BadInput, match=words):
            open_rows(tmp_path / "rows.jsonl", tokenizer, task)
    assert not [one for one in tmp_path.glob("cache/elastane/recipes/*samples-*") if one.is_dir()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "missing.jsonl"}, "data.path: no such file: missing.jsonl"),
        ({"path": "missing/*.jsonl"}, "data.path: no such file"),
        ({"held_out": "missing.jsonl"}, "data.held_out: no such file"),
        ({"held_out": 1.0}, "data.held_out: 1 is not a fraction"),
        ({"held_out": float("nan")}, "data.held_out: nan is not a fraction"),
        ({"tokenizer": "meta-llama/Llama-3.1-8B"}, "data.tokenizer: no such folder"),
        ({"vocabulary": 10}, "data.vocabulary: 10 is not a possible number"),
        ({"chat_template": "missing.jinja"}, "data.chat_template: no such file"),
        ({"format": "tokens"}, "data.format: tokens cannot be the data of the task finetune"),
    ],
)
def test_what_needs_no_data_is_refused_before_the_run_starts(options, words):
    with pytest.raises(BadInput, match=words) as caught:
        check_data(DataSpec(**options), "finetune")
    assert caught.value.do


def test_a_wrong_field_of_the_section_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field `pth`"):
        msgspec.convert({"pth": "x"}, DataSpec)


def test_files_of_several_formats_are_refused(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.jsonl").write_text("{}")
    with pytest.raises(BadInput, match=r"several formats: b.jsonl \(jsonl\), a.txt \(text\)"):
        open_rows(tmp_path, tokenizer)


def test_text_cannot_be_fine_tuned_on(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(BadInput, match="has text, without fields"):
        open_rows(tmp_path / "a.txt", tokenizer)


def test_a_table_without_the_columns_is_refused(tmp_path, tokenizer):
    path = save_table(tmp_path, [{"body": "a"}], "parquet")
    with pytest.raises(BadInput, match=r"rows.parquet: its columns are body"):
        open_rows(path, tokenizer)


@pytest.mark.parametrize(
    ("content", "dtype", "words"),
    [
        (b"\x01" * 1001, "uint16", "cannot be read as tokens"),
        (np.full(500, 9999, np.uint16).tobytes(), "uint16", "has the token 9999"),
        (np.arange(500, dtype=np.uint16).tobytes(), "int32", "has the token"),
        (np.full(500, -4, np.int32).tobytes(), "int32", "has the token -4"),
    ],
)
def test_tokens_that_the_tokenizer_does_not_have_are_refused(tmp_path, tokenizer, content, dtype, words):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(BadInput, match=words):
        open_rows(tmp_path / "a.bin", tokenizer, "pretrain", 16, dtype=dtype)


def test_a_file_of_pickled_objects_is_not_unpickled(tmp_path, tokenizer):
    np.save(tmp_path / "a.npy", np.array([print, {}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput, match="cannot be read as tokens"):
        open_rows(tmp_path / "a.npy", tokenizer, "pretrain", 16)


def test_tokens_need_their_tokenizer(tmp_path):
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(BadInput, match="has tokens, and the recipe has no tokenizer"):
        load_tokenizer(DataSpec(path=str(tmp_path / "a.bin")), "pretrain")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"_data_files": [{"filename": "../rows.parquet"}]}, "it names the file '../rows.parquet'"),
        ({"_data_files": [{"filename": "missing.arrow"}]}, "it names the file 'missing.arrow'"),
        ({"_data_files": "a"}, "state.json: Expected `array`"),
        ([], "state.json: Expected `object`"),
    ],
)
def test_a_broken_folder_of_datasets_is_refused(tmp_path, tokenizer, state, words):
    (tmp_path / "rows.parquet").write_bytes(b"")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(BadInput, match=words):
        open_rows(folder, tokenizer)


def test_a_part_that_a_folder_of_datasets_lacks_is_refused_with_the_nearest_name(tmp_path, tokenizer):
    path = save_table(tmp_path, CHAT, "parts")
    with pytest.raises(BadInput, match="has no part 'tran'") as caught:
        open_rows(path, tokenizer, split="tran")
    assert caught.value.do == "write train"


def test_the_result_names_what_it_holds(tokenizer, write_rows):
    data = open_rows(write_rows(*CHAT), tokenizer)
    assert [field.name for field in dataclasses.fields(data)] == ["train", "held_out", "collate", "summary"]
