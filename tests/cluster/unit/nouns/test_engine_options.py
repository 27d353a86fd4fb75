"""Options of engines and pools: the tables, and the errors for values of another form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.cluster_checks import check_engines
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.engine_options import (
    LONGEST_LINES,
    OPTIONS,
    SLURM,
    check_option,
    check_options,
)
from elastane.cluster.nouns.pools import Pool
from elastane.common.errors import BadField
from elastane.common.field_checks import LONGEST_REMARK

EVERY = [option for table in OPTIONS.values() for option in (*table.engine, *table.pool)]
BY_NAME = {option.name: option for option in EVERY}
HPC = DeclaredEngine(name="hpc", kind="slurm")


def a_pool(name="a100", **fields):
    return Pool(name=name, device="a100", devices=8, **fields)


def refused(engines, *pools):
    with pytest.raises(BadField) as wrong:
        check_engines(engines, pools)
    return wrong.value


@pytest.mark.parametrize("option", EVERY, ids=lambda option: option.name)
def test_the_example_of_an_option_is_correct(option):
    check_option("field", option.example, option)
    assert option.help.endswith(".") or option.help.endswith("'.")


def test_no_two_options_of_a_kind_have_one_name():
    for table in OPTIONS.values():
        for options in (table.engine, table.pool):
            assert len({option.name for option in options}) == len(options)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("partition", ["gpu", "gpu,long", "x.1-a"]),
        ("account", ["vision"]),
        ("exclude", ["n17", "n17,n18"]),
        ("answer", ["5s", "1 min", "0.5s"]),
        ("accounting", ["yes", "no"]),
        ("constraint", ["a100", "a100&ib", "a100|h100"]),
        ("time", ["8h", "90 min", "2 d", "1 h 30 min", "8:00:00", "2-00:00:00", "0:00:01"]),
        ("gres", ["gpu", "gpu:a100", "gpu:3g.20gb", "gpu:1080ti"]),
        ("cpusPerDevice", ["1", "128", "4096"]),
        ("memoryPerDevice", ["500M", "64G", "1T"]),
        ("conf", ["/etc/slurm/slurm.conf", "/my files/slurm.conf"]),
        ("setup", ["a", "a\n\tb\n", "x" * LONGEST_LINES]),
        ("command", ["elastane", "/opt/my env/bin/python -P -m elastane"]),
    ],
)
def test_a_correct_value_is_accepted(name, values):
    for value in values:
        check_option(name, value, BY_NAME[name])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("partition", "-N 8", "is not a name of Slurm"),
        ("partition", "gpu long", "is not a name of Slurm"),
        ("account", "a'b", "is not a name of Slurm"),
        ("account", "a\n", "line breaks"),
        ("qos", "", "is empty"),
        ("qos", "  ", "is empty"),
        ("qos", "normäl", "is not a name of Slurm"),
        ("exclude", "n[1-3]", "is not names of nodes"),
        ("answer", "0s", "is not a duration up to 60s"),
        ("answer", "61s", "is not a duration up to 60s"),
        ("answer", "5", "is not a duration up to 60s"),
        ("accounting", "true", "is not yes or no"),
        ("account", "a,b", "is not a name of Slurm"),
        ("constraint", "a100; rm", "is not features"),
        ("constraint", "a&b|c", "is not features"),
        ("time", "60", "is not a duration with its unit, or a time limit such as 8:00:00"),
        ("time", "8:00", "is not a duration with its unit, or a time limit such as 8:00:00"),
        ("time", "0:00:00", "is not a duration with its unit, or a time limit such as 8:00:00"),
        ("time", "0.1s", "is not a duration with its unit, or a time limit such as 8:00:00"),
        ("time", "9" * 400 + "h", "is not a duration with its unit, or a time limit such as 8:00:00"),
        ("gres", "gpu:2", "without a number of them"),
        ("gres", "gpu:a100:2", "without a number of them"),
        ("cpusPerDevice", "0", "is not a whole number from 1 to 4096"),
        ("cpusPerDevice", "4097", "is not a whole number from 1 to 4096"),
        ("cpusPerDevice", "\u0663", "is not a whole number from 1 to 4096"),
        ("memoryPerDevice", "64", "is not a number with M, G or T"),
        ("command", "'elastane", "is not a command"),
        ("conf", "slurm.conf", "is not an absolute path"),
        ("conf", "/a\x1b[2J", "control characters"),
        ("command", "x" * (LONGEST_REMARK + 1), "characters"),
        ("command", "a\nb", "line breaks"),
        ("setup", "a\r\nb", "control characters"),
        ("setup", "\x1b[2J", "control characters"),
        ("setup", "x" * (LONGEST_LINES + 1), "characters"),
    ],
)
def test_a_wrong_value_is_refused_with_an_example(name, value, words):
    with pytest.raises(BadField, match=words) as wrong:
        check_option(f"pools.p.options.{name}", value, BY_NAME[name])
    assert wrong.value.field == f"pools.p.options.{name}"
    assert wrong.value.do.startswith("write ")


@given(st.sampled_from(EVERY), st.text(max_size=20))
def test_an_accepted_value_cannot_control_a_terminal(option, value):
    try:
        check_option("field", value, option)
    except BadField:
        return
    shown = value.replace("\n", "").replace("\t", "") if option.lines else value
    assert shown.isprintable()
    assert value.strip()


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(BadField) as wrong:
        check_options("engines.hpc.options", "an engine of kind slurm", {"colour": "red"}, SLURM.engine)
    assert wrong.value.what == "engines.hpc.options.colour: an engine of kind slurm has no such option"
    known = "command, setup, home, container, containerMounts, output, conf, bin, answer, accounting"
    assert wrong.value.do == f"write one of: {known}"
    with pytest.raises(BadField) as wrong:
        check_options("pools.p.options", "a pool", {"x\x1b" * 1000: "red"}, SLURM.pool)
    assert len(wrong.value.field) < 200
    assert wrong.value.field.isprintable()


def test_the_engine_of_a_pool_is_declared():
    assert refused((), a_pool(engine="hpc")).do == "declare the engine first"
    unknown = refused((HPC,), a_pool(engine="hcp"))
    assert (unknown.field, unknown.do) == ("pools.a100.engine", "write one of: hpc")
    check_engines((HPC,), (a_pool(engine="hpc"), a_pool("local")))


def test_options_belong_to_an_engine():
    without = refused((HPC,), a_pool(options={"partition": "gpu"}))
    assert (without.field, without.do) == (
        "pools.a100.options",
        "remove them, or name the engine of the pool",
    )
    wrong = refused((HPC,), a_pool(engine="hpc", options={"command": "x"}))
    assert wrong.field == "pools.a100.options.command"
    assert refused((HPC, HPC)).field == "engines"
    assert refused((DeclaredEngine(name="-x", kind="slurm"),)).field == "engines"


def test_the_pools_at_one_site_have_one_engine():
    here, there = a_pool("h100", site="eu"), a_pool(site="eu", engine="hpc")
    wrong = refused((HPC,), here, there)
    assert wrong.what == (
        "pools.a100.site: at site eu, this pool belongs to engine hpc, and pool h100 to the machine of the "
        "controller"
    )
    other = refused(
        (HPC, DeclaredEngine(name="old", kind="slurm")), there, a_pool("b", site="eu", engine="old")
    )
    assert "engine old, and pool a100 to engine hpc" in other.what
    check_engines((HPC,), (a_pool("h100"), a_pool(engine="hpc"), a_pool("b", engine="hpc", site="us"), here))
