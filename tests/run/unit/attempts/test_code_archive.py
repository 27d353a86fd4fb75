"""Archives of code: the code arrives as it was sent, and a hostile archive is refused and leaves nothing."""

import io
import os
import struct
import tarfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed
from elastane.run.machines.joining import code_archive
from elastane.run.machines.joining.code_archive import check_archive, unpack_archive, write_archive
from elastane.run.machines.joining.shipped_code import (
    check_shipped_code,
    compute_code_digest,
    has_shipped_code,
    list_code,
)
from elastane.run.nouns.rundir import RunDir

ANY = "0" * 64
TYPES = {
    "symbolic link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
    "folder": tarfile.DIRTYPE,
    "sparse file": tarfile.GNUTYPE_SPARSE,
    "record of any length": tarfile.XHDTYPE,
}


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "pkg" / ("d" * 120) / ("e" * 120)).mkdir(parents=True)
    (root / "train.py").write_text("import pkg\n")
    (root / "pkg-data.bin").write_bytes(os.urandom(200_000))
    (root / "pkg" / "empty.py").write_text("")
    (root / "pkg" / ("d" * 120) / ("e" * 120) / "deep.py").write_text("x = 1\n")
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("not UTF-8")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link.py").symlink_to("train.py")
    return root


def pack(root):
    archive = io.BytesIO()
    return write_archive(root, list_code(root), archive), archive.getvalue()


def test_the_code_arrives_as_it_was_sent(project, tmp_path):
    digest, content = pack(project)
    assert digest == compute_code_digest(project, list_code(project))
    check_archive(io.BytesIO(content), digest)
    copy = unpack_archive(io.BytesIO(content), tmp_path / "run" / "code", digest)
    assert copy == tmp_path / "run" / "code" / digest
    check_shipped_code(RunDir(tmp_path / "run"), digest)
    assert os.access(copy / "run.sh", os.X_OK)
    assert not os.access(copy / "train.py", os.X_OK)
    assert (copy / "train.py").stat().st_mode & 0o777 == 0o400
    assert (copy / "link.py").read_text() == "import pkg\n"


def test_code_that_was_changed_is_as_it_was_sent_and_other_files_stay(project, tmp_path):
    digest, content = pack(project)
    copy = unpack_archive(io.BytesIO(content), tmp_path, digest)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (copy / "results.csv").write_text("1,2")
    (copy / "run.sh").unlink()
    (copy / "train.py").unlink()
    (copy / "train.py").symlink_to(elsewhere / "train.py")
    (copy / "pkg").rename(elsewhere / "pkg")
    (copy / "pkg").symlink_to(elsewhere)
    assert unpack_archive(io.BytesIO(content), tmp_path, digest) == copy
    assert has_shipped_code(copy, digest)
    (copy / "results.csv").rename(tmp_path / "results.csv")
    assert compute_code_digest(copy, list_code(copy)) == digest
    assert [path.name for path in elsewhere.iterdir()] == ["pkg"]


@pytest.mark.parametrize("names", [b"", b"train.py\0", b"../secret\0", b"/etc/passwd\0", b"pkg\0", b"\xff"])
def test_a_list_of_other_files_makes_a_copy_another_one(project, tmp_path, names):
    digest, content = pack(project)
    copy = unpack_archive(io.BytesIO(content), tmp_path / "code", digest)
    (tmp_path / "code" / "secret").write_text("x")
    (tmp_path / "code" / f"{digest}.files").write_bytes(names)
    assert not has_shipped_code(copy, digest)


@pytest.mark.parametrize("change", ["content", "mode", "missing", "link"])
def test_a_changed_file_is_found_beside_others(project, tmp_path, change):
    digest, content = pack(project)
    copy = unpack_archive(io.BytesIO(content), tmp_path, digest)
    (copy / "results.csv").write_text("1,2")
    assert has_shipped_code(copy, digest)
    script = copy / "train.py"
    if change == "mode":
        script.chmod(0o500)
    else:
        script.rename(copy / "other.py")
    if change == "content":
        script.write_text("import other\n")
    if change == "link":
        script.symlink_to("other.py")
    assert not has_shipped_code(copy, digest)


def test_the_same_code_has_the_same_archive(project):
    content = pack(project)
    os.utime(project / "train.py", (1, 1))
    assert pack(project) == content


def test_other_programs_can_read_an_archive(project):
    _, content = pack(project)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        assert [member.name for member in archive] == [file.name for file in list_code(project)]


def test_code_that_changes_while_it_is_read_is_not_sent(project):
    files = list_code(project)
    (project / "pkg-data.bin").write_bytes(b"")
    with pytest.raises(BadInput, match="has become shorter"):
        write_archive(project, files, io.BytesIO())


# -- hostile archives ----------------------------------------------------------------------------------------


def make_header(name="train.py", size=0, kind=tarfile.REGTYPE, **more):
    header = tarfile.TarInfo(name)
    header.size, header.type = size, kind
    for field, value in more.items():
        setattr(header, field, value)
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def compress(*parts):
    compressor = zlib.compressobj(wbits=31)
    return b"".join([*map(compressor.compress, parts), compressor.flush()])


def make_archive(*parts, end=bytes(1024)):
    return compress(*parts, end)


def find_refusal(content, folder, digest=ANY):
    """Return why an archive is refused, after a look for anything that it has left."""
    with pytest.raises(Malformed) as refused:
        unpack_archive(io.BytesIO(content), folder, digest)
    assert list(folder.iterdir()) == []
    with pytest.raises(Malformed) as checked:
        check_archive(io.BytesIO(content), digest)
    assert str(checked.value) == str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_an_archive_has_files_only(kind, tmp_path):
    content = make_archive(make_header(kind=kind, linkname="/etc/passwd"))
    assert "something else than a file" in find_refusal(content, tmp_path / "code")


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up.py", "a/../../up.py", "a//b", "./a", "a/", "..", ".", "a/./b", "", "\0a"],
)
def test_no_name_leads_out_of_the_code(name, tmp_path):
    long = make_header("././@LongLink", len(name.encode()) + 1, tarfile.GNUTYPE_LONGNAME)
    padded = name.encode() + bytes(512 - len(name.encode()))
    content = make_archive(long, padded, make_header())
    assert "a name that leads out" in find_refusal(content, tmp_path / "code")


@pytest.mark.parametrize("name", ["/".join("a" * 102), "b" * 256, "/".join(["c" * 200] * 21)])
def test_a_name_has_a_limit(name, tmp_path):
    content = make_archive(make_header(name))
    assert "a name" in find_refusal(content, tmp_path / "code")


@pytest.mark.parametrize("name", ["__pycache__/train.cpython-311.pyc", "pkg/train.pyc", ".git", "venv/x.py"])
def test_a_file_that_no_check_of_a_copy_counts_is_refused(name, tmp_path):
    assert "never shipped" in find_refusal(make_archive(make_header(name)), tmp_path / "code")


def test_no_file_is_there_twice(tmp_path):
    for names in (("a", "a"), ("b", "a")):
        content = make_archive(*map(make_header, names))
        assert "there twice" in find_refusal(content, tmp_path / "code")
    content = make_archive(*map(make_header, ("a", "a-b", "a/b")))
    assert "is a folder, too" in find_refusal(content, tmp_path / "code")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(code_archive, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(code_archive, "MOST_FILES", 20)
    monkeypatch.setattr(code_archive, "LARGEST_ARCHIVE_BYTES", 2 << 20)
    folder = tmp_path / "code"
    assert "1 MiB" in find_refusal(make_archive(make_header(size=1 << 30), bytes(3 << 20)), folder)
    many = make_archive(*(make_header(f"f{n:04}") for n in range(21)))
    assert "more than 20 files" in find_refusal(many, folder)
    zeros = make_archive(make_header(), bytes(3 << 20))
    assert "more than 2097152 bytes" in find_refusal(zeros, folder)
    long = make_archive(make_header(size=1 << 30, kind=tarfile.GNUTYPE_LONGNAME), bytes(3 << 20))
    assert "a name of more than" in find_refusal(long, folder)
    negative = bytearray(make_header())
    negative[124:136] = struct.pack(">bxxxq", -1, -512)
    negative[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(negative))[0]
    assert "something else than a file" in find_refusal(make_archive(bytes(negative)), folder)


def test_an_archive_that_takes_too_long_to_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(code_archive, "LONGEST_S", -1)
    assert "took more than" in find_refusal(make_archive(make_header()), tmp_path / "code")


def test_other_code_is_refused(project, tmp_path):
    _, content = pack(project)
    assert "it has the code" in find_refusal(content, tmp_path / "code")


def test_a_damaged_archive_is_refused(project, tmp_path):
    digest, content = pack(project)
    folder = tmp_path / "code"
    assert "ends too early" in find_refusal(content[:-1], folder, digest)
    assert "ends too early" in find_refusal(b"", folder, digest)
    assert "follows its end" in find_refusal(content + b"more", folder, digest)
    assert "not compressed" in find_refusal(b"plain text", folder, digest)
    whole = zlib.decompress(content, wbits=31)
    assert "follows its last file" in find_refusal(compress(whole, b"x"), folder, digest)
    assert "ends too early" in find_refusal(compress(whole[:-1024]), folder, digest)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_does_harm(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    (root / "a.py").write_text("a = 1\n")
    (root / ("b" * 120)).write_text("b = 2\n")
    digest, content = pack(root)
    whole = bytearray(zlib.decompress(content, wbits=31))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("unpacked")
    try:
        copy = unpack_archive(io.BytesIO(compress(bytes(whole))), folder, digest)
    except Malformed:
        assert list(folder.iterdir()) == []
    else:
        assert compute_code_digest(copy, list_code(copy)) == digest
