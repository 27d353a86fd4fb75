"""The software of a machine that decides about the trained bytes, as far as it is known without a worker."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from elastane.run.nouns.spec import RunSoftware, RunSpec


def list_own_versions() -> dict[str, str]:
    """Return the versions on this machine; a package that is not installed has none."""
    versions = {"python": platform.python_version()}
    for name in ("elastane", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def read_software(spec: RunSpec) -> RunSoftware | None:
    """Return the software with which a run begins on this machine; None: other machines cannot take part."""
    if not spec.listen:
        return None
    script = Path(spec.script)
    return RunSoftware(
        versions=list_own_versions(),
        architecture=platform.machine(),
        script_digest=hash_script(script) if script.is_file() else "",
    )


def hash_script(script: Path) -> str:
    """Return the SHA-256 of a script's text."""
    return hashlib.sha256(script.read_bytes()).hexdigest()
