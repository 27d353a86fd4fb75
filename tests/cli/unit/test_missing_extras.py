"""The error for a missing package names the extra to install."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest

import elastane
from elastane.common.extras import MODULES, MissingExtra, find_extra, require, require_for_import

SOURCES = Path(elastane.__file__).parents[1]
PROJECT = SOURCES.parent / "pyproject.toml"
IMPORTED_AS = {
    "cuda-bindings": "cuda",
    "fastapi-offline": "fastapi_offline",
    "mlflow-skinny": "mlflow",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "ruamel.yaml": "ruamel",
}

JOB = "name: j\nteam: t\nscript: /train.py\n"
WITHOUT = [
    # Missing module, typed command, extra that the error names.
    ("torch", ("run", "train.py"), "torch"),
    ("safetensors", ("run", "train.py"), "torch"),
    ("numpy", ("run", "train.py"), "torch"),
    ("sqlalchemy", ("up",), "controller"),
    ("fastapi", ("up",), "controller"),
    ("uvicorn", ("up",), "controller"),
    ("fastapi_offline", ("up",), "controller"),
    ("alembic", ("up",), "controller"),
    ("h11", ("up",), "controller"),
    ("psycopg", ("up", "--store", "postgresql://nobody@127.0.0.1:1/none"), "postgres"),
    ("httpx", ("jobs",), "client"),
    ("httpx", ("top",), "client"),
    ("httpx", ("submit", "train.py"), "client"),
    ("httpx", ("describe", "j"), "client"),
    ("httpx", ("pool", "list"), "client"),
    ("httpx", ("token", "list"), "client"),
    ("httpx", ("claims", "list"), "client"),
    ("httpx", ("usage",), "client"),
    ("httpx", ("audit",), "client"),
    ("httpx", ("login", "http://127.0.0.1:1", "--token-stdin"), "client"),
    ("ruamel", ("submit", "job.yaml", "--dry-run"), "client"),
    ("ruamel", ("config", "apply", "cluster.yaml"), "client"),
    ("s3fs", ("run", "--checkpoint-dir", "s3://bucket/path", "train.py"), "s3"),
    ("transformers", ("recipe", "run", "llama-tiny"), "recipes"),
    ("peft", ("recipe", "run", "llama-tiny-lora"), "recipes"),
    ("accelerate", ("recipe", "run", "llama-tiny"), "recipes"),
    ("transformers", ("recipe", "plan", "llama-tiny"), "recipes"),
    ("ruamel", ("recipe", "list"), "client"),
    ("tensorboard", ("run", "--log", "tensorboard", "train.py"), "trackers"),
    ("mlflow", ("run", "--log", "mlflow", "train.py"), "trackers"),
    ("sqlalchemy", ("run", "--log", "mlflow", "train.py"), "trackers"),
    ("alembic", ("run", "--log", "mlflow", "train.py"), "trackers"),
    ("wandb", ("run", "--log", "wandb", "train.py"), "trackers"),
    ("cryptography", ("run", "--listen", "127.0.0.1", "train.py"), "nodes"),
]
IMPORTS = [
    ("torch", "import elastane; elastane.join", "torch"),
    ("torch", "from elastane import join", "torch"),
    ("torch", "import elastane.run.worker.session", "torch"),
    ("safetensors", "from elastane import EarlyStopping", "torch"),
    ("numpy", "from elastane.integrations.datasets import TokenFile", "torch"),
    ("numpy", "import elastane.integrations.datasets.tokens", "torch"),
    ("httpx", "from elastane.cluster.client.cluster import Cluster", "client"),
    ("transformers", "from elastane.integrations.transformers import Trainer", "recipes"),
    ("accelerate", "from elastane.integrations.transformers import Trainer", "recipes"),
    ("trl", "from elastane.integrations.trl import SFTTrainer", "trl"),
    ("lightning", "import elastane.integrations.lightning", "lightning"),
    ("tensorboard", "import elastane; elastane.join(log='tensorboard')", "trackers"),
    ("mlflow", "import elastane; elastane.join(log='mlflow')", "trackers"),
    ("wandb", "import elastane; elastane.join(log='wandb')", "trackers"),
    # Questions to other processes: to export a model and to rehearse a restore.
    (
        "torch",
        "from elastane.cli.torch_process import run_module as r; r('elastane.run.worker.export', (), object)",
        "torch",
    ),
    (
        "pyarrow",
        (
            "from pathlib import Path\n"
            "from elastane.integrations.datasets.documents import read_documents as read\n"
            "Path('t.parquet').touch(); list(read(Path('t.parquet'), 'text'))"
        ),
        "text",
    ),
]


@pytest.fixture
def run_without(tmp_path):
    """Run Python, and its child processes, without some of the installed modules."""
    (tmp_path / "train.py").write_text("import elastane\nelastane.join()\n")
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text("pools: []\n")

    def run(modules: Iterable[str], *words: str) -> subprocess.CompletedProcess[str]:
        missing = dict.fromkeys(modules)
        (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= {missing!r}\n")
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            input="ela_x",
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": f"{tmp_path}:{SOURCES}",
                "ELASTANE_HOME": str(tmp_path / "home"),
                "ELASTANE_URL": "http://127.0.0.1:1",
                "ELASTANE_TOKEN": "ela_x",
            },
        )

    return run


def list_installed_modules(extra: str) -> set[str]:
    """Return the modules of the packages that an extra of pyproject.toml names."""
    named = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"][extra]
    packages = (re.split(r"[\[<>=]", one)[0] for one in named)
    return {IMPORTED_AS.get(name, name) for name in packages}


@pytest.mark.processes
@pytest.mark.parametrize(("module", "words", "extra"), WITHOUT)
def test_a_command_names_the_extra_that_it_lacks(run_without, module, words, extra) -> None:
    assert module in list_installed_modules(extra)
    done = run_without([module], "-m", "elastane", *words)
    assert f"pip install 'elastane[{extra}]'" in done.stderr, done.stdout + done.stderr
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(("module", "code", "extra"), IMPORTS)
def test_an_import_names_the_extra_that_it_lacks(run_without, module, code, extra) -> None:
    assert module in list_installed_modules(extra)
    done = run_without([module], "-c", code)
    assert done.returncode == 1
    assert f"pip install 'elastane[{extra}]'" in done.stderr, done.stderr
    assert "MissingExtra" in done.stderr


def test_the_command_itself_needs_no_extra(run_without) -> None:
    done = run_without(chain(*MODULES.values()), "-m", "elastane", "--help")
    assert done.returncode == 0, done.stderr


def test_every_extra_of_the_project_is_known_with_its_packages() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert set(MODULES) == set(extras) - {"dev", "docs", "examples"}
    for extra, modules in MODULES.items():
        brought = list_installed_modules(extra)
        # A package that two extras install is reported with the smaller extra.
        elsewhere = {one for one in brought if find_extra(one) != extra}
        assert brought - elsewhere == set(modules), extra


def test_every_dependency_has_an_upper_bound_unless_its_major_version_is_a_year() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    everything = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert [one for one in everything if "<" not in one and not re.search(r">=20\d\d", one)] == []


def test_the_constraints_are_plain_versions_that_the_project_allows() -> None:
    lines = (PROJECT.parent / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==(\d+!)?[A-Za-z0-9.]+", line)] == []
    pinned = {re.split("==", line)[0].lower().replace("_", "-") for line in pins}
    project = tomllib.loads(PROJECT.read_text())["project"]
    everything = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    named = {re.split(r"[\[<>=]", one)[0].lower() for one in everything}
    # Users choose the build of torch themselves, and the CUDA that goes with it; NIXL is too large for tests.
    assert named - pinned == {"torch", "cuda-bindings", "nixl"}


def test_a_failure_inside_elastane_is_not_taken_for_a_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as failed, require_for_import("torch", "training"):
        import_module("elastane.no_such_module")
    assert not isinstance(failed.value, MissingExtra)


def test_an_installed_extra_is_no_error() -> None:
    require("torch", "training")


def test_dir_lists_names_that_are_loaded_on_first_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import elastane, sys; print(dir(elastane)); print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCES)},
    )
    names, torch = done.stdout.splitlines()
    assert {"EarlyStopping", "Run", "join", "__version__"} <= set(re.findall(r"'(\w+)'", names))
    assert torch == "False", "listing names loads nothing"


def test_a_prompt_completes_the_names_of_the_module() -> None:
    import rlcompleter

    completer = rlcompleter.Completer({"elastane": elastane})
    assert completer.complete("elastane.jo", 0).startswith("elastane.join")


def test_python_m_elastane_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "elastane", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert (done.returncode, done.stdout.strip()) == (0, elastane.__version__)
