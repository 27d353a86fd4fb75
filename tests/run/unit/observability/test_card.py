"""The card shows how a model was trained, alike for equal ledgers; texts of a run cannot break it."""

import re

import msgspec

from elastane.run.nouns.records import EventLine
from elastane.run.nouns.spec import RunSpec
from elastane.run.nouns.training_environment import TrainingEnvironment
from elastane.run.observability.card import (
    AdapterConfig,
    FinishedModel,
    draw_card_sparkline,
    write_card_text,
    write_loading_section,
)
from elastane.run.observability.finished import write_conclusion
from elastane.run.observability.metrics import Metrics, Pause, Traffic, compute_goodput, compute_metrics

EVENTS = (
    EventLine(time=1000.0, kind="run.started"),
    EventLine(time=1000.5, kind="worker.joined", who="worker 0", step=0),
    EventLine(time=1001.5, kind="checkpoint.saved", step=1, detail={"name": "step-1", "step": 1, "bytes": 9}),
    EventLine(time=1002.5, kind="worker.joined", who="worker 1", why="member since generation 2", step=3),
    EventLine(
        time=1003.0,
        kind="generation.started",
        why="worker 1 joins",
        step=3,
        workers=(0, 1),
        pause_ms={0: 12.3},
        pause_steps={0: 0.06},
    ),
    EventLine(time=1004.1, kind="coordinator.died", why="signal 9", detail={"pid": 77}),
    EventLine(time=1004.5, kind="evaluation", step=4, detail={"right": 7.0, "seen": 8}, samples=8),
    EventLine(
        time=1005.0, kind="worker.died", who="worker 1", why="worker 0 lost its connection to it", step=5
    ),
    EventLine(time=1006.2, kind="run.finished"),
)
ADAPTER = ("adapter_model.safetensors", 10)
WHOLE = FinishedModel(files=(("model.safetensors", 1400),))
CARD = f"""# trial

100 trained parameters, trained for 6 steps on 1 to 2 workers by Elastane: finished.

## Training

| | |
|---|---|
| script | `train.py` |
| script SHA-256 | `{"ab" * 32}` |
| steps | 6 of 6, 8 samples each, in 4 virtual ranks of 2 |
| samples | 40, 2 epochs of 20 |
| final loss | 0.3333 |
| last evaluation | right 0.875 (8 samples) after step 4 |
| optimizer | `AdamW(lr=0.001)` |
| copies of the optimizer state | one on every worker |
| seed | 7 |
| convergence | exact |
| digest of the parameters | `{"e" * 64}` after step 6 |
| started | 2026-01-01T00:00:00Z |
| wall time | 6.2 s, 33 samples/s during steps |
| goodput | 19.2 % of the wall time advanced the training |

## Workers over time

```
workers  ▅▅████  1 to 2
loss     █▄▂▁▁▁  2 to 0.3333
         steps 1 to 6, one step per column
```

Workers: 1 from step 1, 2 from step 3.

## Events

1 joined, 1 died, 1 coordinator death. Longest pause of a healthy worker: 12 ms, 0.06 usual steps, at step 3.

| step | event | reason |
|---:|---|---|
| 3 | worker 1 joined | member since generation 2 |
| 4 | coordinator died | signal 9 |
| 5 | worker 1 died | worker 0 lost its connection to it |

## Checkpoints

1 written, none used.

The newest: `step-1` after step 1.

## Environment

| | |
|---|---|
| device | cpu |
| elastane | 0.1.0 |
| python | 3.11.7 |
| torch | 2.13.0 |
| threads per worker | 1 |

## Files

| | |
|---|---|
| `model.safetensors` | 1.4 kB |

## Loading

```python
from safetensors.torch import load_model

load_model(model, "model.safetensors")  # model: built as in the script
```

`elastane verify trial` verifies with the ledger that every sample was trained on exactly once.
"""


def write_card(run, model=WHOLE):
    return write_card_text(run, compute_metrics(run), model)


def test_the_card_shows_how_the_model_was_trained(make_run):
    assert write_card(make_run(events=EVENTS)) == CARD


def test_the_card_names_the_checkpoint_that_a_run_was_resumed_from(make_run):
    resumed = EventLine(time=1000.1, kind="run.resumed", detail={"name": "step-40", "step": 40})
    text = write_card(make_run(events=(resumed, *EVENTS)))
    assert "1 written, training continued from:\n- `step-40`, step 40" in text


def test_the_card_of_a_stopped_run_has_its_last_step(make_run):
    text = write_card(make_run(steps=4, events=(EventLine(time=1007.0, kind="run.stopped"),)))
    assert "trained for 4 steps" in text
    assert "stopped after step 4 of 6" in text


def test_a_stream_has_no_planned_number_of_steps(make_run):
    pinned = msgspec.structs.replace(make_run().record.pinned, steps=0, dataset_length=0)
    text = write_card(make_run(steps=4, pinned=pinned, events=(EventLine(time=1007.0, kind="run.stopped"),)))
    assert "stopped after step 4." in text
    assert "| steps | 4, 8 samples each" in text


def test_the_card_loads_transformers_and_shards_in_their_own_way(make_run):
    theirs = msgspec.structs.replace(WHOLE, architecture="LlamaForCausalLM")
    assert 'model = LlamaForCausalLM.from_pretrained(".")' in write_card(make_run(), theirs)
    shards = FinishedModel(files=(("model.safetensors.index.json", 10),))
    assert "load_state_dict(load_file(shard), strict=False)" in write_card(make_run(), shards)


def test_texts_of_a_run_cannot_break_the_card(make_run):
    evil = "a|b`c`\n# <script>"
    run = make_run(events=(EventLine(time=1002.5, kind="worker.died", who=evil, why=evil, step=2),))
    spec = RunSpec(name=evil, script="/home/somebody/" + evil, args=(evil,))
    text = write_card(
        msgspec.structs.replace(run, record=msgspec.structs.replace(run.record, spec=spec)),
        msgspec.structs.replace(WHOLE, architecture="x\nimport os"),
    )
    assert text.count("\n# ") == 0
    assert "/home/somebody" not in text
    outside_code = re.sub(r"`[^`]*`", "", text.replace("\\`", ""))
    assert "<script>" not in outside_code
    assert "import os" not in text


def test_bars_follow_the_means_and_leave_gaps_for_missing_values():
    assert draw_card_sparkline([0.0, 1.0, None, 3.0], from_zero=True) == "▁▃ █"
    assert draw_card_sparkline([2.0, 2.0], from_zero=False) == "▁▁"
    assert len(draw_card_sparkline([1.0] * 1000, from_zero=True)) == 64
    assert draw_card_sparkline([None], from_zero=False) == " "


def test_goodput_is_the_time_in_steps_without_the_pauses():
    pause = Pause(3, "", 2, 1000.0, None)
    assert compute_goodput(9.0, [pause], 16.0) == 0.5
    assert compute_goodput(0.5, [pause], 16.0) == 0.0
    assert compute_goodput(0.0, [], 16.0) is None


def test_metrics_have_the_bytes_between_machines(make_run):
    detail = {"node": "b", "sent_bytes": 70, "received_bytes": 60}
    event = EventLine(
        time=1.0, kind="traffic.measured", step=12, generation=3, workers=(100, 101), detail=detail
    )
    assert compute_metrics(make_run(events=(event,))).traffic == (Traffic(12, 3, "b", 2, 70, 60),)


def test_metrics_and_card_are_written_into_the_run_directory(make_run):
    run = make_run(events=EVENTS)
    write_conclusion(run)
    assert not run.run_dir.card.exists()
    run.run_dir.model_files.weights.write_bytes(bytes(1400))
    write_conclusion(run)
    assert run.run_dir.card.read_text() == CARD
    read = msgspec.json.decode(run.run_dir.metrics.read_bytes(), type=Metrics)
    assert read == compute_metrics(run)
    assert (read.workers, read.events["worker.joined"]) == (((1, 1), (3, 2)), 2)
    before = run.run_dir.metrics.read_bytes()
    write_conclusion(run)
    assert run.run_dir.metrics.read_bytes() == before
    assert {path.name for path in run.run_dir.root.iterdir()} == {
        "model.safetensors",
        "metrics.json",
        "CARD.md",
    }


def test_the_card_shows_the_environment_if_it_is_recorded(make_run):
    run = make_run()
    run.run_dir.model_files.weights.write_bytes(b"")
    environment = TrainingEnvironment(
        platform="Linux 6.1 x86_64",
        libc="",
        python="",
        processor="Some CPU",
        instruction_set="AVX2",
        threads=1,
        deterministic_algorithms=False,
        matmul_precision="highest",
        variables={},
        packages={},
    )
    run.run_dir.model_files.environment.write_bytes(msgspec.json.encode(environment))
    write_conclusion(run)
    assert "| processor | Some CPU |" in run.run_dir.card.read_text()


def test_the_card_of_an_adapter_loads_its_base_model_by_name_or_says_how_to_write_it():
    named = AdapterConfig("meta/small-model", "CAUSAL_LM")
    text = "\n".join(write_loading_section(FinishedModel(files=(ADAPTER,), adapter=named), "tuned"))
    assert 'base = AutoModelForCausalLM.from_pretrained("meta/small-model")' in text
    for base in (None, "", "a`b", 'x") or ("'):
        unnamed = FinishedModel(files=(ADAPTER,), adapter=AdapterConfig(base))
        text = "\n".join(write_loading_section(unnamed, "tuned"))
        assert "elastane export tuned --format hf --out tuned-hf" in text
        assert 'AutoModel.from_pretrained("tuned-hf")' in text
