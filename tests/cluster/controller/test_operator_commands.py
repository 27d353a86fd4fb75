"""Commands of operators, against a controller over a real socket; a clock moves its jobs."""

import base64
import csv
import io
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane.cli.main import app
from elastane.cli.operators.pool import NAMED
from elastane.cluster.controller.store import history
from elastane.cluster.nouns.engine import ObservedNode
from elastane.cluster.nouns.engine_options import OPTIONS, SLURM

from . import job_rows
from .conftest import _served

H100 = ("pool", "set", "h100", "--device", "h100", "--devices", "8", "--price", "2")


class Terminal:
    """A terminal with a token."""

    def __init__(self, monkeypatch, url, token):
        self.monkeypatch, self.url, self.token = monkeypatch, url, token

    def __call__(self, *words, stdin=None, code=0):
        self.monkeypatch.setenv("ELASTANE_URL", self.url)
        self.monkeypatch.setenv("ELASTANE_TOKEN", self.token)
        done = CliRunner().invoke(app, [str(word) for word in words], input=stdin)
        assert done.exit_code == code, done.output
        return done

    def said(self, *words, **how):
        return self(*words, **how).stdout

    def json(self, *words, **how):
        return json.loads(self(*words, "--json", **how).stdout)

    def error(self, *words, code=2, **how):
        return self(*words, code=code, **how).stderr

    def rows(self, *words):
        """Return the words of each row of a table, without the headings."""
        return [line.split() for line in self.said(*words).splitlines()[1:]]


@pytest.fixture
def terminal(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ELASTANE_CA", raising=False)
    with _served(cluster.api) as url:
        yield lambda role="operator", **whose: Terminal(
            monkeypatch, url, cluster.api.token(role, **{"user": "olga", **whose})
        )


@pytest.fixture
def olga(terminal):
    return terminal()


def test_options_that_are_not_given_leave_their_fields_unchanged(olga):
    assert olga.said(*H100) == "pool h100 added: device h100, devices 8, price 2\n"
    assert olga.said("pool", "set", "h100", "--spot") == "pool h100 changed: spot no -> yes\n"
    assert olga.said("pool", "set", "h100", "--devices", "8") == "pool h100 is unchanged\n"
    after = olga.json("pool", "set", "h100", "--on-demand", "--label", "fabric=ib")
    assert (after["devices"], after["spot"], after["labels"]) == (8, False, {"fabric": "ib"})
    assert "--device and --devices" in olga.error("pool", "set", "new", "--price", "1")


def test_a_pool_without_nodes_says_where_its_jobs_run(olga, cluster):
    warning = "no engine has seen a node of pool h100"
    declared = olga(*H100)
    assert warning in declared.stderr
    assert "the controller's own machine" in declared.stderr
    listed = olga("pool", "list")
    assert warning in listed.stderr
    assert olga.json("pool", "list")[0]["nodes"] == 0
    cluster.world.seen_nodes.append(ObservedNode(name="n1", pool="h100", devices=8))
    cluster.pass_time(1)
    assert not olga("pool", "set", "h100", "--price", "3").stderr
    assert not olga("pool", "list").stderr
    assert olga.json("pool", "list")[0]["nodes"] == 1


SETUP = "module load cuda\nsource /opt/train/bin/activate"


def test_engines_are_declared_and_named_by_pools(olga, cluster):
    assert "so it needs --kind" in olga.error("engine", "set", "hpc", "--option", f"setup={SETUP}")
    added = olga.said(
        "engine",
        "set",
        "hpc",
        "--kind",
        "slurm",
        "--option",
        f"setup={SETUP}",
        "--option",
        "bin=/opt/slurm/bin",
    )
    assert added.startswith("engine hpc added: kind slurm, options.setup module load cuda\n  source")
    assert olga.said("engine", "set", "hpc", "--option", "bin=") == (
        "engine hpc changed: options.bin /opt/slurm/bin -> none\n"
    )
    assert olga.said("engine", "set", "hpc", "--option", f"setup={SETUP}") == "engine hpc is unchanged\n"
    assert olga.json("engine", "show", "hpc") == {"name": "hpc", "kind": "slurm", "options": {"setup": SETUP}}
    assert "  setup: |-\n    module load cuda\n    source" in olga.said("engine", "show", "hpc")
    assert olga.rows("engine", "list")[0][:3] == ["hpc", "slurm", "setup=module"]
    assert "is not an absolute path" in olga.error("engine", "set", "hpc", "--option", "conf=slurm.conf")

    assert "--device h100 --engine hpc" in olga.error("pool", "set", "a100", "--engine", "hpc")
    a100 = ("pool", "set", "a100", "--device", "a100", "--engine", "hpc", "--partition", "gpu")
    made = olga(*a100, "--option", "gres=gpu:a100", "--option", "cpusPerDevice=8", "--time", "8:00:00")
    assert "engine hpc, options.partition gpu, options.time 8:00:00" in made.stdout
    assert "engine hpc has shown no node of pool a100" in made.stderr
    assert olga.said("pool", "set", "a100", "--time", "", "--qos", "long") == (
        "pool a100 changed: options.time 8:00:00 -> none, options.qos none -> long\n"
    )
    options = {"partition": "gpu", "gres": "gpu:a100", "cpusPerDevice": "8", "qos": "long"}
    assert olga.json("pool", "show", "a100")["options"] == options
    (row,) = olga.rows("pool", "list")
    assert (row[0], row[-1]) == ("a100", "hpc")
    assert "engine hpc is in use by pool a100" in olga.error("engine", "remove", "hpc")
    assert "there is no engine 'other'" in olga.error("pool", "set", "a100", "--engine", "other")

    shown = olga.said("config", "show")
    assert olga.said("config", "diff", "-", stdin=shown) == "nothing would change\n"
    other = shown.replace("gpu:a100", "gpu:a30").replace("module load cuda", "module load cuda/12")
    assert olga.said("config", "diff", "-", stdin=other, code=1) == (
        "~ engine hpc: options.setup module load cuda\n  source /opt/train/bin/activate -> "
        "module load cuda/12\n  source /opt/train/bin/activate\n"
        "~ pool a100: options.gres gpu:a100 -> gpu:a30\n"
    )

    back = olga("pool", "set", "a100", "--engine", "", "--devices", "2")
    assert "engine hpc -> none" in back.stdout
    assert "the controller's own machine" in back.stderr
    assert olga.json("pool", "show", "a100")["options"] == {}
    assert "has no engine" in olga.error("pool", "set", "a100", "--partition", "gpu")
    assert olga.json("engine", "remove", "hpc") == {"removed": "hpc"}


def test_a_command_can_set_every_option_of_engines_and_pools(olga):
    words = [word for option in SLURM.engine for word in ("--option", f"{option.name}={option.example}")]
    made = olga.json("engine", "set", "hpc", "--kind", "slurm", *words)
    assert made["options"] == {option.name: option.example for option in SLURM.engine}
    words = [
        word
        for option in SLURM.pool
        for word in (
            (f"--{option.name}", option.example)
            if option.name in NAMED
            else ("--option", f"{option.name}={option.example}")
        )
    ]
    made = olga.json("pool", "set", "a100", "--device", "a100", "--engine", "hpc", *words)
    assert made["options"] == {option.name: option.example for option in SLURM.pool}
    assert "--option gres has no value" in olga.error("pool", "set", "a100", "--option", "gres")


def test_the_page_of_engines_lists_their_options():
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+?(?<!\\)) \| (.+) \|$", page, re.MULTILINE)
    plain = [tuple(cell.replace("\\|", "|") for cell in row) for row in rows]
    options = [option for table in OPTIONS.values() for option in (*table.engine, *table.pool)]
    assert plain == [(option.name, option.metavar, option.help) for option in options]


def test_a_team_a_cohort_and_their_quotas_are_declared_and_listed(olga):
    olga(*H100)
    olga("cohort", "set", "research", "--weight", "3")
    assert olga.said("team", "set", "vision", "--cohort", "research") == (
        "team vision added: cohort research\n"
    )
    said = olga.said("quota", "set", "vision", "--pool", "h100", "--nominal", "4", "--borrow", "2")
    assert said == (
        "team vision changed: quotas.h100.nominalQuota none -> 4, quotas.h100.borrowingLimit none -> 2\n"
    )
    olga("quota", "set", "research", "--pool", "h100", "--nominal", "2", "--lend", "0")
    olga("quota", "set", "vision", "--pool", "h100", "--borrow", "unlimited")
    assert olga.rows("quota", "list") == [
        ["research", "cohort", "h100", "2", "unlimited", "0"],
        ["vision", "team", "h100", "4", "unlimited", "unlimited"],
    ]
    assert olga.rows("team", "list") == [["vision", "research", "1", "h100", "4"]]
    assert olga.json("team", "show", "vision")["quotas"][0]["nominalQuota"] == 4
    assert "depends on it" in olga.said("team", "remove", "--help")
    assert "weight: nan is not finite" in olga.error("team", "set", "vision", "--weight", "nan")
    olga("cohort", "set", "sub", "--parent", "research")
    refused = olga.error("cohort", "remove", "research")
    assert "cohort research is in use by cohort sub, team vision" in refused
    assert "elastane team set TEAM --cohort OTHER" in refused
    assert "pool h100 is in use by the quota of research, the quota of vision" in olga.error(
        "pool", "remove", "h100"
    )
    said = olga("quota", "set", "vision", "--pool", "h100", "--nominal", "5000").stderr
    assert "quotas promise 5002 devices of pool h100, which has" in said
    olga("quota", "remove", "vision", "--pool", "h100")
    assert "vision has no quota" in olga.error("quota", "remove", "vision", "--pool", "h100")
    assert "no team or cohort 'nobody'" in olga.error("quota", "set", "nobody", "--pool", "h100")
    assert olga.json("team", "remove", "vision") == {"removed": "vision"}
    assert "does not exist" in olga.error("team", "show", "vision", code=3)


def test_priorities_may_be_negative_and_are_listed_by_value(olga):
    olga("priority", "set", "low", "-5", "--description", "background")
    olga("priority", "set", "high", "100")
    assert olga.said("priority", "set", "usual", "10", "--default") == (
        "priority usual added: value 10, default yes\n"
    )
    assert [row[0] for row in olga.rows("priority", "list")] == ["high", "usual", "low"]
    assert olga.said("priority", "set", "low", "-6") == "priority low changed: value -5 -> -6\n"
    assert olga.json("priority", "show", "low")["description"] == "background"


def test_weekly_and_single_reservations_are_declared_and_listed(olga):
    olga(*H100)
    weekly = ("--days", "mon-fri", "--from", "09:00", "--until", "18:00", "--zone", "Europe/Berlin")
    made = olga.json(
        "calendar", "set", "inference", "--pool", "h100", "--devices", "4", *weekly, "--announce", "30min"
    )
    assert made["when"] == {
        "type": "weekly",
        "days": ["mon", "tue", "wed", "thu", "fri"],
        "start": "09:00:00",
        "end": "18:00:00",
        "zone": "Europe/Berlin",
    }
    assert made["announcedAheadS"] == 1800
    once = ("--start", "2035-12-01T08:00", "--end", "2035-12-01T12:00", "--zone", "Europe/Berlin")
    olga("calendar", "set", "repair", "--pool", "h100", "--devices", "8", *once)
    olga("calendar", "set", "inference", "--until", "17:00")
    table = olga.said("calendar", "list")
    assert "mon-fri 09:00-17:00 Europe/Berlin" in table
    assert "from 1 Dec 2035" in table
    assert "is not a time zone" in olga.error("calendar", "set", "inference", "--zone", "Mars/Base")
    assert "it needs --pool and --devices" in olga.error("calendar", "set", "new", *weekly)


def test_a_token_for_an_undeclared_team_is_made_with_a_warning(olga):
    token = ("token", "create", "--user", "ada", "--role", "viewer", "--team")
    assert olga(*token, "visoin").stderr == ""
    olga("team", "set", "vision")
    assert "note: team visoin is not declared" in olga(*token, "visoin", "--json").stderr
    assert olga(*token, "vision").stderr == ""
    assert olga(*token, "*").stderr == ""


def test_tokens_are_made_listed_without_their_secrets_and_revoked(olga, terminal):
    made = olga.json(
        "token", "create", "--user", "ada", "--role", "viewer", "--team", "vision", "--valid", "30d"
    )
    token, secret = made["token"], made["secret"]
    assert token["expiresS"] - token["createdS"] == 30 * 86400
    ada = terminal("viewer", user="ada")
    ada.token = secret
    assert ada.json("team", "list") == []
    listed = olga.said("token", "list")
    assert token["id"] in listed
    assert secret not in listed
    assert olga.said("token", "revoke", token["id"]) == f"{token['id']} revoked\n"
    assert "no valid token" in ada.error("team", "list")
    assert token["id"] not in olga.said("token", "list")
    assert token["id"] in olga.said("token", "list", "--all")
    told = olga.said("token", "create", "--user", "meter", "--role", "reporter")
    assert "secret  ela_" in told
    assert "belongs to no team" in olga.error(
        "token", "create", "--user", "x", "--role", "reporter", "--team", "v"
    )


def test_claim_lists_are_shown_and_deleted(olga, terminal, cluster):
    for team, name in (("vision", "train-1"), ("vision", "both"), ("speech", "both")):
        user = cluster.api.user(team=team)
        body = {"slot": 1, "content": base64.b64encode(bytes(2048)).decode()}
        assert user.post(f"/claims/{team}/{name}", body).status_code == 201
    ada = terminal("submitter", user="ada")
    assert "train-1" in ada.said("claims", "list")
    assert "2.0 kB" in ada.said("claims", "list")
    assert "speech" not in ada.said("claims", "list")
    assert ada.said("claims", "delete", "train-1") == "claim list train-1 of team vision deleted\n"
    assert "there is no claim list train-1" in ada.error("claims", "delete", "train-1")
    assert "2 teams have a claim list both: speech, vision" in olga.error("claims", "delete", "both")
    assert "there is no claim list both of team audio" in olga.error(
        "claims", "delete", "both", "--team", "audio"
    )
    assert olga.json("claims", "delete", "both", "--team", "speech") == {"deleted": "speech/both"}
    assert [(one["team"], one["name"]) for one in olga.json("claims", "list")] == [("vision", "both")]


def test_a_reported_capacity_limits_the_devices_of_jobs(olga, terminal, cluster):
    olga(*H100)
    olga("trigger", "set", "busy", "--metric", "qps", "--above", "100", "--pool", "h100", "--limit", "2")
    meter = terminal("reporter", user="meter")
    assert meter.said("tell", "metric", "qps", "150", "--for", "5min") == "qps is 150 for 5 min\n"
    (pool,) = olga.json("pool", "list")
    assert (pool["devices"], pool["leaving"], pool["free"]) == (8, 6, 2)
    assert meter.said("tell", "metric", "qps", "-1") == "qps is -1 for 10 min\n"
    meter("tell", "capacity", "h100", "5", "--for", "1h")
    assert olga.json("pool", "list")[0]["free"] == 5
    said = meter.said("tell", "price", "h100", "0.75", "--for", "1h")
    assert said == "a device of h100 costs 0.75 per hour for 1 h\n"
    assert olga.json("pool", "list")[0]["price"] == 0.75
    assert "value: nan is not finite" in meter.error("tell", "metric", "qps", "nan")
    assert "there is no node n9" in meter.error("tell", "notice", "n9", "--in", "2min", code=3)
    assert "it needs --metric, --pool, --limit" in olga.error("trigger", "set", "other", "--metric", "x")
    assert olga.rows("trigger", "list") == [["busy", "qps", "above", "100", "h100", "2"]]
    assert "operator" in meter.error("pool", "list")


def test_nodes_are_listed_drained_failed_and_returned_to_use(olga, cluster, terminal):
    olga(*H100)
    assert "no engine has seen a node" in olga.said("node", "list")
    cluster.world.seen_nodes.append(ObservedNode(name="n1", pool="h100", devices=8))
    cluster.pass_time(1)
    assert olga.said("node", "drain", "n1", "--why", "new disk") == (
        "node n1 is drained: 8 devices of h100, new disk\n"
    )
    assert olga.json("pool", "list")[0]["leaving"] == 8
    assert olga.json("node", "fail", "n1")["wanted"] == "failed"
    assert olga.json("pool", "list")[0]["devices"] == 0
    olga("node", "use", "n1")
    terminal("reporter", user="meter")("tell", "notice", "n1", "--in", "2min")
    (node,) = olga.json("node", "list")
    assert node["goneAtS"] == cluster.clock() + 120


def test_the_explanation_of_a_job_names_the_node_that_it_loses(olga, cluster, make_spec):
    olga(*H100)
    cluster.world.seen_nodes.append(ObservedNode(name="n1", pool="h100", devices=1))
    cluster.world.seen_nodes.append(ObservedNode(name="n2", pool="h100", devices=1))
    cluster.pass_time(1)
    cluster.api.user("operator", user="olga").post("/jobs", make_spec("digits"))
    cluster.until(lambda: cluster.workers("digits") == 2)
    olga("node", "drain", "n1", "--why", "new disk")
    cluster.until(lambda: cluster.workers("digits") == 1)
    words = "There is 1 fewer device in h100 than jobs were granted: node n1 is drained (new disk)."
    assert words in olga.said("events", "digits", "--job")
    olga("node", "fail", "n2")
    cluster.until(lambda: cluster.workers("digits") == 0)
    assert "node n2 has failed" in olga.said("events", "digits", "--job")


def test_usage_is_printed_in_hours_and_as_json_in_seconds(olga, cluster, make_spec):
    cluster.counts_devices = True
    olga(*H100)
    cluster.api.user().post("/jobs", make_spec())
    cluster.until(lambda: cluster.workers("train") == 4)
    cluster.pass_time(90)
    seconds = cluster.held["train", "h100"]
    (row,) = olga.json("usage", "--by", "team", "--by", "pool", "--from", "2020-01-01")["rows"]
    assert (row["team"], row["pool"], row["borrowedDeviceS"]) == ("vision", "h100", seconds)
    words = olga.rows("usage", "--from", "2020-01-01", "--by", "job")
    hours = f"{seconds / 3600:.4f}"
    assert words[0] == ["train", "0.0000", hours, "0.0000", hours, f"{seconds / 1800:.2f}"]
    assert words[1] == ["total", *words[0][1:]]
    table = list(csv.DictReader(io.StringIO(olga.said("usage", "--from", "2020-01-01", "--csv"))))
    assert [(one["team"], float(one["borrowed_device_s"])) for one in table] == [("vision", seconds)]
    assert "no usage" in olga.said("usage", "--from", "2019-01-01", "--until", "2019-02-01")
    assert olga.said("usage", "--by", "job", "--by", "job") == olga.said("usage", "--by", "job")


def test_bytes_between_sites_are_printed_beside_the_devices(olga, cluster, make_spec):
    olga(*H100)
    cluster.api.user().post("/jobs", make_spec())
    cluster.until(lambda: cluster.workers("train") == 4)
    assert "egress" not in olga.said("usage", "--from", "2020-01-01")
    with cluster.api.store.begin_write() as tx:
        job_rows.send(tx, "train", 3 * 10**9, cluster.clock())
    by_pool = olga.rows("usage", "--from", "2020-01-01", "--by", "pool")
    assert by_pool[0] == ["berlin>boston", "0.0000", "0.0000", "0.0000", "0.0000", "3.00", "6.00", "6.00"]
    assert [row[0] for row in by_pool] == ["berlin>boston", "h100", "total"]
    assert by_pool[-1][-3:-1] == ["3.00", "6.00"]
    (line,) = csv.DictReader(io.StringIO(olga.said("usage", "--from", "2020-01-01", "--csv")))
    assert (float(line["egress_bytes"]), float(line["egress_cost"])) == (3e9, 6.0)
    assert "(6.00 for egress)" in olga.said("describe", "train")


def test_a_span_of_usage_that_ends_before_it_begins_is_refused(olga, cluster):
    refused = olga.error("usage", "--from", "2019-02-01", "--until", "2019-01-01")
    assert "--from 2019-02-01 00:00 is after --until 2019-01-01 00:00" in refused
    assert "is after now" in olga.error("usage", "--from", "2099-01-01")
    refused = olga.error("usage", "--from", "2099-01-01", "--until", "2099-02-01")
    assert "--from 2099-01-01 00:00 is after now" in refused
    refused = cluster.api.user().get("/usage?from=20&until=10")
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "from: 1970-01-01 00:00:20 UTC is after until, 1970-01-01 00:00:10 UTC"
    )
    assert cluster.api.user().get("/usage?from=9e10").json()["field"] == "from"
    assert "give only one of them" in olga.error("usage", "--csv", "--json")


def test_applying_the_printed_configuration_changes_nothing(olga):
    test_a_team_a_cohort_and_their_quotas_are_declared_and_listed(olga)
    olga("team", "set", "no", "--cohort", "research")
    olga("quota", "set", "no", "--pool", "h100", "--nominal", "1")
    olga("trigger", "set", "busy", "--metric", "qps", "--above", "1e3", "--pool", "h100", "--limit", "0")
    at = ("--from", "09:00", "--until", "18:00")
    olga("calendar", "set", "inference", "--pool", "h100", "--devices", "2", *at)
    shown = olga.said("config", "show")
    assert olga.said("config", "diff", "-", stdin=shown) == "nothing would change\n"
    assert olga.json("config", "apply", "-", stdin=shown) == []
    other = shown.replace("devices: 8", "devices: 6").replace("name: busy", "name: calm")
    assert olga.said("config", "diff", "-", stdin=other, code=1) == (
        "~ pool h100: devices 8 -> 6\n"
        "- trigger busy\n"
        "+ trigger calm: metric qps, above 1000, pool h100, limit 0\n"
    )
    assert len(olga.json("config", "apply", "-", stdin=other)) == 3
    assert olga.json("pool", "show", "h100")["devices"] == 6
    assert olga.json("team", "list")[0]["name"] == "no"


def test_a_policy_is_checked_before_it_is_applied(olga, cluster, make_spec, tmp_path):
    olga(*H100)
    cluster.api.user().post("/jobs", make_spec())
    cluster.until(lambda: cluster.workers("train") == 4)
    file = tmp_path / "smaller.yaml"
    file.write_text("pools:\n- {name: h100, device: h100, devices: 2}\n")
    said = olga.said("policy", "check", file)
    assert "~ pool h100: devices 8 -> 2, price 2 -> 0" in said
    assert "4 -> 2" in said
    assert "train shrinks to 2 workers in h100." in said
    foreseen = olga.json("policy", "check", file)
    assert [(one["job"], one["before"], one["after"]) for one in foreseen["jobs"]] == [("train", 4, 2)]
    assert olga.json("pool", "show", "h100")["devices"] == 8
    file.write_text("pools:\n- {name: h100, device: h100, devices: 8, price: 1}\n")
    assert "no job would change its size now" in olga.said("policy", "check", file)


def test_the_audit_log_is_printed_newest_first_or_only_its_refusals(olga, terminal, cluster):
    olga(*H100)
    assert "only an operator" in terminal("viewer", user="eve").error("pool", "set", "h100", "--price", "0")
    newest, before = olga.rows("audit")[:2]
    assert newest[2:] == ["eve", "documents.write", "refused", "pool", "h100:", *newest[7:]]
    assert before[2:8] == ["olga", "pools.put", "pool", "h100:", "device", "h100,"]
    lines = [json.loads(line) for line in olga.said("audit", "--refused", "--json").splitlines()]
    assert [(one["user"], one["allowed"]) for one in lines] == [("eve", False)]
    assert len(olga.rows("audit", "-n", "1")) == 1
    with cluster.api.store.begin_read() as tx:
        assert history.find_newest_event(tx) == 1


GROUPS = ("pool", "team", "cohort", "quota", "priority", "calendar", "trigger", "node", "token", "config")
VERBS = [("usage",), ("audit",), ("policy", "check"), ("tell", "metric"), ("config", "apply")]
VERBS += [(group, "set") for group in GROUPS[:7]] + [(group, "list") for group in GROUPS[:9]]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_command_has_help_and_accepts_json(verb):
    page = CliRunner().invoke(app, [*verb, "--help"])
    assert page.exit_code == 0
    assert "--json" in page.stdout


def test_without_a_cluster_every_command_says_how_to_find_one(tmp_path, monkeypatch):
    monkeypatch.setenv("ELASTANE_HOME", str(tmp_path))
    for name in ("ELASTANE_URL", "ELASTANE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(app, ["team", "list"])
    assert done.exit_code == 2
    assert "no cluster is configured" in done.stderr
