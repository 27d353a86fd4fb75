"""What tests of several floors need."""

import subprocess

import pytest


@pytest.fixture
def small_disk_of(tmp_path):
    """Mounts a disk of so many bytes, for one test."""
    mounted = []

    def mount(size):
        where = tmp_path / f"small-{len(mounted)}"
        where.mkdir()
        mounting = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(where)],
            check=False,
            capture_output=True,
            text=True,
        )
        if mounting.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {mounting.stderr.strip()}")
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
