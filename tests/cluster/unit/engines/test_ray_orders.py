"""What operators write about Ray, and what an actor gets."""

import subprocess

import pytest

from elastane.cluster.engines.ray.actor_order import build_command, build_order, encode_orders
from elastane.cluster.engines.ray.options import (
    RayOptions,
    RayPool,
    decode_ray_options,
    decode_ray_pool,
)
from elastane.cluster.nouns.agents import ELASTANE_COMMAND, AgentAsk
from elastane.common.errors import BadField, BadInput


def an_ask(**changes):
    fields = {"id": "c1-7", "job": "demo", "pool": {}, "devices": 2, "grace_s": 30.0, "ticket": "t"}
    return AgentAsk(**fields | changes)


def test_all_options_are_decoded():
    assert decode_ray_options({}) == RayOptions(command=ELASTANE_COMMAND)
    options = {
        "address": "10.0.0.5:6379",
        "python": "/opt/ray/bin/python",
        "command": "/opt/train/bin/elastane --flag 'two words'",
        "setup": "module load cuda",
        "answer": "8s",
    }
    found = decode_ray_options(options)
    assert found.command == ("/opt/train/bin/elastane", "--flag", "two words")
    assert (found.address, found.python, found.answer_s) == ("10.0.0.5:6379", "/opt/ray/bin/python", 8.0)

    assert decode_ray_pool({}) == RayPool(resource="GPU", cpus_per_device=1)
    options = {
        "resource": "TPU",
        "cpusPerDevice": "8",
        "memoryPerDevice": "64G",
        "accelerator": "TPU-V4",
        "labels": "market=spot,ray.io/zone=b",
    }
    pool = decode_ray_pool(options)
    assert pool.list_holdings(2) == {"TPU": 2, "CPU": 16, "memory": 128 << 30}
    assert pool.needs == {"accelerator_type:TPU-V4": 0.001}
    assert pool.labels == {"market": "spot", "ray.io/zone": "b"}


@pytest.mark.parametrize(
    ("options", "holds"),
    [
        ({}, {"GPU": 3, "CPU": 3}),
        ({"cpusPerDevice": "4"}, {"GPU": 3, "CPU": 12}),
        ({"resource": "CPU"}, {"CPU": 3}),
        ({"resource": "CPU", "cpusPerDevice": "2"}, {"CPU": 6}),
    ],
)
def test_an_agent_holds_its_devices_and_their_processors(options, holds):
    assert decode_ray_pool(options).list_holdings(3) == holds


@pytest.mark.parametrize(
    ("decode", "name", "value"),
    [
        (decode_ray_options, "address", "ray://10.0.0.5:10001"),
        (decode_ray_options, "address", "10.0.0.5"),
        (decode_ray_options, "address", "10.0.0.5:6379 --x"),
        (decode_ray_options, "python", "python3"),
        (decode_ray_options, "command", "a 'b"),
        (decode_ray_options, "setup", "a\0b"),
        (decode_ray_options, "answer", "2 h"),
        (decode_ray_options, "colour", "red"),
        (decode_ray_pool, "resource", "GPU:2"),
        (decode_ray_pool, "resource", "-1"),
        (decode_ray_pool, "cpusPerDevice", "0"),
        (decode_ray_pool, "memoryPerDevice", "64GB"),
        (decode_ray_pool, "accelerator", "a b"),
        (decode_ray_pool, "labels", "market"),
        (decode_ray_pool, "labels", "a=b;c=d"),
        (decode_ray_pool, "partition", "gpu"),
    ],
)
def test_another_value_or_name_is_refused_and_named(decode, name, value):
    with pytest.raises(BadField) as caught:
        decode({name: value})
    assert caught.value.field == f"options.{name}"
    assert caught.value.do


def test_an_order_has_all_that_the_actor_needs():
    pool = decode_ray_pool({"labels": "market=spot"})
    order = build_order(an_ask(log="/home/a.log"), pool, RayOptions(command=("elastane",)))
    assert encode_orders({"c1-7": order}) == {
        "c1-7": {
            "command": ("elastane", "join", "-"),
            "ticket": "t",
            "log": "/home/a.log",
            "holds": {"CPU": 2.0, "GPU": 2.0},
            "needs": {},
            "labels": {"market": "spot"},
            "grace_s": 30.0,
            "until_s": None,
        }
    }
    order = build_order(an_ask(cpus=6, memory_bytes=1 << 30), pool, RayOptions())
    assert order.holds == {"CPU": 6.0, "GPU": 2.0, "memory": float(1 << 30)}


@pytest.mark.parametrize(
    "changes", [{"devices": 0}, {"devices": 5000}, {"ticket": ""}, {"ticket": "a\nb"}, {"log": "agent.log"}]
)
def test_an_actor_that_cannot_be_is_refused_without_its_ticket(changes):
    with pytest.raises(BadInput) as caught:
        build_order(an_ask(**{"ticket": "secret"} | changes), RayPool(), RayOptions())
    assert "secret" not in str(caught.value)


def test_the_lines_of_the_setup_run_before_the_command_in_one_process():
    options = RayOptions(
        command=("/bin/sh", "-c", "echo $NAME $0 $1 $$", "x"), setup="NAME=ready; export NAME\n"
    )
    process = subprocess.Popen(build_command(options), stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=60)
    assert output == f"ready x join {process.pid}\n"


def test_ray_refuses_an_image_in_words():
    with pytest.raises(BadInput, match="Ray does not run the image team/train:1 of job demo"):
        build_order(an_ask(image="team/train:1"), RayPool(), RayOptions())
