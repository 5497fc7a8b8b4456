"""`bench import`: the requests of an import, counted with a real strace, whose lines become calls; one-line errors."""

from __future__ import annotations

import json
import tomllib
import venv
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError
from lumiimg.host import import_calls
from lumiimg.host.import_calls import (
    Counts,
    ImportBench,
    ImportCost,
    ImportSource,
    _bound_path_test,
    count,
    parse,
    read_traces,
)
from lumiimg.report.text import show
from lumiimg.report.views.bench import import_document
from tests.shared.programs import needs

Capture = pytest.CaptureFixture[str]
MODULES = 40


def package(site: Path) -> Path:
    """Write a package with many modules."""
    folder = site / "many"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("".join(f"from . import m{n}\n" for n in range(MODULES)))
    for number in range(MODULES):
        (folder / f"m{number}.py").write_text("x = 1\n")
    return site


def test_each_module_is_opened_on_the_file_system_of_its_place(tmp_path: Path, capsys: Capture) -> None:
    needs("strace")
    place = tmp_path / "a place, with späces"
    venv.create(place, symlinks=True)
    site = package(next(place.glob("lib/python*/site-packages")))
    code = main(["bench", "import", "--json", "--module", "many", str(place), str(place)])
    out, err = capsys.readouterr()
    first, second = json.loads(out)["places"]
    assert (code, first["kind"]) == (0, "venv")
    assert first["module_file"] == f"{site}/many/__init__.py"
    shared, program = first["shared"], first["program"]
    assert second["shared"] == shared, "the counts are not the same each time"
    assert MODULES < shared["opens"] < program["opens"]
    # at least a stat and an open of each
    assert 2 * MODULES < shared["metadata"] < program["metadata"]
    assert f"reaches it {shared['metadata']:,} {shared['opens']:,}" in " ".join(err.split())


def test_what_will_not_do_is_reported_in_one_line(tmp_path: Path, capsys: Capture) -> None:
    needs("strace")
    (tmp_path / "folder").mkdir()
    venv.create(tmp_path / "venv", symlinks=True)
    for place, module, words in (
        ("gone", "many", "no such file or folder"),
        ("folder", "many", "is neither an image file nor a virtual environment"),
        ("venv", "many", "`import many` fails there: ModuleNotFoundError: No module named 'many'"),
        ("venv", "json", "json is imported from elsewhere:"),
        *(("venv", name, "is not a valid module name") for name in ("os; import x", "a-b", "a..b", "a" * 200)),
    ):
        assert main(["bench", "import", str(tmp_path / place), "--module", module]) == 2, (place, module)
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1


def test_without_strace_the_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (image := tmp_path / "image.sif").touch()
    assert main(["bench", "import", str(image), "--module", "many"]) == 4
    assert "strace is not on PATH; install it" in capsys.readouterr().err


def test_paths_in_a_container_are_the_images_or_bound() -> None:
    mounts = """\
605 604 0:77 / / rw,relatime - overlay fuse-overlayfs ro
606 605 254:0 /home/a /home/a\\040b rw,nosuid - ext4 /dev/vda rw
607 605 0:5 / /proc rw - proc proc rw
608 605 254:0 /scratch /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
609 605 0:80 / /scratch/image ro - fuse.squashfuse_ll squashfuse_ll ro
a line that is none
"""
    is_bound = _bound_path_test(mounts)
    bound = ["/scratch", "/scratch/x/y", "/home/a b/.local/lib"]
    assert [
        path for path in [*bound, "/usr/lib/x", "/proc/self", "/home/a", "/scratch/image/x", "/"] if is_bound(path)
    ] == bound


def test_what_cannot_be_counted_is_reported_and_no_number(capsys: Capture) -> None:
    hidden = ImportCost(
        "/p/b.sif", ImportSource.IMAGE, "/usr/t.py", "", "3.11.2", Counts(opens=95), None, "set-user-id"
    )
    show(import_document(ImportBench("t", (hidden,))))
    out = capsys.readouterr().out
    assert "? not counted: set-user-id" in out
    assert out.count("?") == 1 + 3
    assert max(map(len, out.splitlines())) <= 80


LINES = tomllib.loads((Path(__file__).parents[1] / "fixtures/strace.toml").read_text())


def test_a_line_is_a_call_on_a_file_or_none() -> None:
    for row in LINES["call"]:
        call = parse(line := row["line"])
        assert call is not None, line
        path = row["path"].encode("latin-1").decode("utf-8", "surrogateescape")
        assert (call.name, call.path, call.error) == (line.partition("(")[0], path, row.get("error")), line
    assert [line for line in LINES["others"] if parse(line) is not None] == []


def test_calls_are_counted_by_kind(tmp_path: Path) -> None:
    file = tmp_path / "trace.9"
    file.write_text(
        'openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>\n'
        'openat(AT_FDCWD, "/site/a.py", O_RDONLY) = 3</site/a.py>\n'
        'stat("/site/b.py", 0x7ff) = -1 ENOENT (No such file or directory)\n'
        'openat(AT_FDCWD, "/site/c.so", O_RDONLY) = -1 ENOTDIR (Not a directory)\n'
        "getdents64(3</site>, 0x7f /* 5 entries */, 32768) = 160\n"
        'readlink("/site/e", 0x7f, 4096) = -1 EINVAL (Invalid argument)\n'
        'mkdir("/site/f", 0777) = 0\n'
        "+++ exited with 0 +++\n"
    )
    counts = count(read_traces([file]))
    assert counts == Counts(metadata=7, opens=3, failed=2)
    assert count([]) == Counts()


def test_a_trace_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace"
    file.write_bytes(b'stat("/a", 0x7ff) = 0\n' * 100 + b"\0" * 100_000)
    assert len(read_traces([file, file])) == 200
    monkeypatch.setattr(import_calls, "MAX_TRACE_BYTES", 150_000)
    assert len(read_traces([file])) == 100
    with pytest.raises(BadInputError, match="more than 150000 bytes"):
        read_traces([file, file])
