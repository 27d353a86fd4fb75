"""Kubeconfigs, and the credentials of clients."""

import asyncio
import base64
import sys

import pytest

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.credentials import ApiCredentials
from elastane.cluster.engines.kubernetes.kubeconfig import (
    ApiAccess,
    ExecProgram,
    ExecVariable,
    find_access,
    find_access_from_inside,
)
from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.cluster.nouns.agents import Away
from elastane.common.errors import BadInput

CONFIG = """\
apiVersion: v1
current-context: east
clusters:
- name: one
  cluster: {server: "https://10.0.0.1:6443/", certificate-authority: ca.crt}
- name: two
  cluster: {server: "https://10.0.0.2", insecure-skip-tls-verify: true, tls-server-name: api}
- name: plain
  cluster: {server: "http://127.0.0.1:8001"}
users:
- name: ada
  user: {token: abc, exec: null}
- name: bob
  user: {tokenFile: token}
- name: eve
  user: {exec: {command: ./login, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}}
- name: other
  user: {token: abc, as: bob}
- name: old
  user: {auth-provider: {name: gcp}}
contexts:
- {name: east, context: {cluster: one, user: ada, namespace: training}}
- {name: west, context: {cluster: two, user: bob}}
- {name: login, context: {cluster: two, user: eve}}
- {name: other, context: {cluster: two, user: other}}
- {name: old, context: {cluster: one, user: old}}
- {name: proxy, context: {cluster: plain, user: ada}}
- {name: torn, context: {cluster: three}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ca.crt").write_text("AUTHORITY")
    (tmp_path / "config").write_text(CONFIG)
    return tmp_path / "config"


def read(config, context="", environment=None, **options):
    options = KubernetesOptions(context=context, kubeconfig=str(config or ""), **options)
    return find_access(options, environment or {})


def test_a_context_names_the_server_the_user_and_the_namespace(config):
    east = read(config)
    assert (east.server, east.namespace) == ("https://10.0.0.1:6443", "training")
    assert (east.authorities, east.token) == ("AUTHORITY", "abc")
    west = read(config, "west")
    assert (west.namespace, west.insecure, west.server_name) == ("default", True, "api")
    assert read(config, "login").program.command == str(config.parent / "login")
    assert west.token_file == str(config.parent / "token")


def test_credentials_are_sent_over_tls_only(config):
    assert read(config, "proxy") == ApiAccess(server="http://127.0.0.1:8001")


def test_several_files_are_one_and_the_first_counts(config, tmp_path):
    other = tmp_path / "other"
    other.write_text("contexts: [{name: east, context: {cluster: two, user: ada}}]\n")
    environment = {"HOME": str(tmp_path), "KUBECONFIG": f"{tmp_path}/missing:{other}:{config}"}
    assert read(None, environment=environment).server == "https://10.0.0.2"
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(CONFIG.replace("ca.crt", "../ca.crt"))
    assert read(None, environment={"HOME": str(tmp_path)}).server == "https://10.0.0.1:6443"


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ("north", "has no context north"),
        ("torn", "has no cluster three"),
        ("old", "has an auth-provider"),
        ("other", "act as bob"),
    ],
)
def test_a_context_that_leads_nowhere_is_refused(config, context, words):
    with pytest.raises(BadInput, match=words):
        read(config, context)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a",
        "{",
        "contexts: 3",
        "current-context: east\ncontexts: [{name: east, context: {cluster: 3}}]",
        CONFIG.replace("https://10.0.0.1:6443/", "ftp://a"),
        CONFIG.replace("certificate-authority: ca.crt", "proxy-url: 'http://a'"),
        CONFIG.replace("certificate-authority: ca.crt", "certificate-authority-data: '%'"),
        CONFIG.replace("certificate-authority: ca.crt", "certificate-authority: missing.crt"),
    ],
)
def test_a_malformed_kubeconfig_is_refused_in_words(config, text):
    config.write_text(text)
    with pytest.raises(BadInput) as refused:
        read(config)
    assert str(config.parent) in refused.value.what


def test_a_pod_speaks_to_its_own_cluster(config, tmp_path):
    account = tmp_path / "account"
    account.mkdir()
    for name in ("token", "namespace", "ca.crt"):
        (account / name).write_text(f"{name}\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert find_access_from_inside(environment, account) == ApiAccess(
        server="https://[fd00::1]:443",
        namespace="namespace",
        authorities="ca.crt\n",
        token_file=str(account / "token"),
    )
    with pytest.raises(BadInput, match="no kubeconfig"):
        read(None)
    with pytest.raises(BadInput, match="there is no context east"):
        read(None, "east")


def build(access, now=lambda: 0.0):
    return ApiCredentials(access, now)


def ask(credentials):
    return asyncio.run(credentials.build_header())


def test_a_token_in_a_file_is_read_each_time(tmp_path):
    file = tmp_path / "token"
    credentials = build(ApiAccess(server="https://a", token_file=str(file)))
    assert isinstance(ask(credentials), Away)
    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        assert ask(credentials) == f"Bearer {token}"
    assert ask(build(ApiAccess(server="https://a"))) == ""
    basic = build(ApiAccess(server="https://a", basic=("ada", "x")))
    assert base64.b64decode(ask(basic).removeprefix("Basic ")) == b"ada:x"


PROGRAM = """\
import json, os, sys
request = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert request["kind"] == "ExecCredential", request
with open(sys.argv[1], "a") as calls:
    calls.write("x")
token = os.environ["PART"] + str(os.path.getsize(sys.argv[1]))
print(json.dumps({"status": {"token": token, "expirationTimestamp": "1970-01-01T01:00:00Z"}}))
"""


def test_a_program_prints_a_token_until_it_is_over_or_refused(tmp_path):
    program = ExecProgram(
        command=sys.executable,
        api_version="client.authentication.k8s.io/v1",
        args=("-I", "-S", "-c", PROGRAM, str(tmp_path / "calls")),
        env=(ExecVariable("PART", "t"),),
    )
    now_s = [0.0]
    credentials = build(ApiAccess(server="https://a", program=program), lambda: now_s[0])

    async def run():
        found = [await credentials.build_header(), await credentials.build_header()]
        now_s[0] = 3590.0
        found.append(await credentials.build_header())
        now_s[0] = 0.0
        credentials.forget()
        return [*found, await credentials.build_header()]

    assert asyncio.run(run()) == ["Bearer t1", "Bearer t1", "Bearer t2", "Bearer t3"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no login')", "failed: no login"),
        ("print('{')", "has not printed a token"),
        ("print('{\"status\": {}}')", "client certificates are not supported"),
    ],
)
def test_a_program_without_a_token_is_no_answer(program, words):
    exec_ = ExecProgram(command=sys.executable, api_version="v1", args=("-I", "-S", "-c", program))
    away = ask(build(ApiAccess(server="https://a", program=exec_)))
    assert isinstance(away, Away)
    assert words in away.why


def test_certificates_that_cannot_be_used_are_refused():
    for access in (
        ApiAccess(server="https://a", authorities="none"),
        ApiAccess(server="https://a", certificate="none", key="none"),
    ):
        with pytest.raises(BadInput, match="cannot be used"):
            ApiServer(access, 1.0)
