"""`lumiimg ldd`: the contract's JSON, the tree, the exit codes; the loader itself is the oracle for the paths."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.engine.binds import parse_binds
from lumiimg.errors import BadInputError
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot_file import write_snapshot
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.elf_builder import (
    NOTES,
    exe,
    library,
    new_runpath,
    note_source,
    program,
    runpath,
    so,
    trace,
)

Capture = pytest.CaptureFixture[str]


def ldd(capsys: Capture, *argv: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["ldd", *map(str, argv), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == 1
    files: dict[str, Any] = data["files"]
    return code, files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a stand-in C library, and a program in /app that needs liba.so, which needs libb.so."""
    root = tmp_path / "root"
    fabric_builder.c_library(root, 36)
    b = library(root / "opt/b/libb.so")
    a = library(root / "app/liba.so", b)
    program(root / "app/prog", a, *runpath("$ORIGIN"))
    return root


def test_the_answer_for_this_machine_is_that_of_its_ld_so(capsys: Capture) -> None:
    files = [str(Path(shutil.which(name) or "").resolve()) for name in ("ls", "env", "bash")]
    code, found = ldd(capsys, "/", *files)
    assert code == 0
    for path in files:
        printed = {name: where for name, where in trace(path).found if not name.startswith("/")}
        assert "libc.so.6" in printed
        assert printed.items() <= found[path]["closure"].items()
        assert found[path]["errors"] == found[path]["missing_versions"] == []


def test_what_is_missing_is_null_and_makes_the_answer_no(root: Path, capsys: Capture) -> None:
    code, files = ldd(capsys, root, "/app/prog")
    assert code == 1
    assert files["/app/prog"]["closure"] == {"liba.so": "/app/liba.so", "libb.so": None}
    assert files["/app/prog"]["errors"] == ["libb.so: cannot open shared object file: No such file or directory"]


def test_a_variable_and_a_folder_bound_from_this_machine_are_as_with_an_engine(root: Path, capsys: Capture) -> None:
    code, files = ldd(capsys, root, "/app/prog", "--env", "LD_LIBRARY_PATH=/opt/b")
    assert (code, files["/app/prog"]["closure"]["libb.so"]) == (0, "/opt/b/libb.so")
    outside = library(root.parent / "outside/libb.so")
    code, files = ldd(capsys, root, "/app/prog", "--bind", f"{outside}:/usr/lib64/libb.so")
    assert (code, files["/app/prog"]["closure"]["libb.so"]) == (0, "/usr/lib64/libb.so")


@pytest.mark.parametrize(("kernel", "found"), [("5.14.21-150500.55-cray_c", False), ("5.15.0", True), ("5.x", True)])
def test_the_kernel_of_the_node_counts_for_an_older_loader(
    tmp_path: Path, capsys: Capture, kernel: str, found: bool
) -> None:
    """A library for a newer kernel is passed over (glibc elf/dl-load.c open_verify, up to 2.35)."""
    root = tmp_path / "root"
    fabric_builder.c_library(root, 35)
    note = note_source(b"GNU\0", 1, struct.pack("<IIII", 0, 5, 15, 0), ".note.kernel")
    liba = so(root / "opt/liba.so", source=f"{NOTES}int f;{note}")
    exe(root / "prog", liba, *new_runpath("/opt"))
    with open_image(fabric_builder.host(tmp_path / "host")) as node:
        write_snapshot(replace(scan_host({}, root=node.root), kernel=kernel), tmp_path / "host.json")
    _, files = ldd(capsys, root, "/prog", "--host", str(tmp_path / "host.json"))
    assert (files["/prog"]["closure"]["liba.so"] is not None) is found


def test_files_may_come_after_options(root: Path, capsys: Capture) -> None:
    assert main(["ldd", str(root), "--cwd", "/", "/app/prog", "--json", "/app/liba.so"]) == 1
    assert set(json.loads(capsys.readouterr().out)["files"]) == {"/app/prog", "/app/liba.so"}


def test_the_current_folder_counts_where_a_path_is_relative(root: Path, capsys: Capture) -> None:
    code, files = ldd(capsys, root, "../../app/prog", "--env", "LD_LIBRARY_PATH=:/none", "--cwd", "/opt/b")
    assert (code, files["../../app/prog"]["closure"]["libb.so"]) == (0, "libb.so")


def test_a_version_that_is_not_there_names_both_sides(root: Path, capsys: Capture) -> None:
    newer = fabric_builder.c_library(root.parent / "newer", 38)
    fabric_builder.versioned(root / "app/libnew.so", needs={newer: ("GLIBC_2.38",)})
    code, files = ldd(capsys, root, "/app/libnew.so")
    assert code == 1
    assert files["/app/libnew.so"]["missing_versions"] == [
        {"provider": "/lib64/libc.so.6", "version": "GLIBC_2.38", "required_by": "/app/libnew.so"}
    ]
    assert files["/app/libnew.so"]["errors"] == [
        "/lib64/libc.so.6: version `GLIBC_2.38' not found (required by /app/libnew.so)"
    ]


def test_all_takes_every_program_and_library_once(root: Path, capsys: Capture) -> None:
    (root / "app/link.so").symlink_to("liba.so")
    (root / "app/script.so").write_text("/* GNU ld script */")
    (root / "app/object.o").write_bytes((root / "app/liba.so").read_bytes()[:16] + b"\1\0" + bytes(100))
    _, files = ldd(capsys, root, "--all")
    own = {path for path in files if path.startswith("/app/")}
    assert own == {"/app/prog", "/app/liba.so"}


def test_the_tree_says_by_which_rule_each_file_was_found(root: Path, capsys: Capture) -> None:
    assert main(["ldd", str(root), "/app/prog"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "/app/prog"
    assert lines[1] == "└── liba.so => /app/liba.so  [RUNPATH]"
    assert lines[2] == "    └── libb.so => not found"


def test_many_files_are_told_in_a_line_each_where_something_is_wrong(root: Path, capsys: Capture) -> None:
    assert main(["ldd", str(root), "--all"]) == 1
    text = capsys.readouterr().out
    assert "✗ /app/prog" in text
    assert "✗ /opt/b/libb.so" not in text
    assert "would load, 2 would not" in text


def test_of_very_many_files_the_commonest_causes_are_told(root: Path, capsys: Capture) -> None:
    content = (root / "app/liba.so").read_bytes()
    for number in range(30):
        (root / f"opt/copy{number}.so").write_bytes(content)
    assert main(["ldd", str(root), "--all"]) == 1
    text = capsys.readouterr().out
    assert text.count("✗") == 20
    assert "… and 12 more" in text
    assert "missing most often: libb.so (32)" in text


def test_a_long_chain_is_no_trouble(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "root/usr/lib64"
    fabric_builder.c_library(tmp_path / "root", 36)
    first = library(folder / "lib0000.so")
    pattern = library(folder / "lib0001.so", first).read_bytes()
    for number in range(2, 1200):
        below, own = f"lib{number - 1:04}.so".encode(), f"lib{number:04}.so".encode()
        content = pattern.replace(b"lib0001.so", own).replace(b"lib0000.so", below)
        (folder / own.decode()).write_bytes(content)
    assert main(["ldd", str(tmp_path / "root"), "/usr/lib64/lib1199.so"]) == 0
    assert "lib0000.so => /usr/lib64/lib0000.so" in re.sub(r"[│\s]+", " ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no file to look at"),
        (["/app/prog", "--all"], "both --all and files"),
        (["/app/none"], "cannot be looked up in the image"),
        (["/app/prog", "--bind", "/no/such/file"], "/no/such/file cannot be bound"),
        (["/app/prog", "--bind", "/etc:etc"], "not an absolute path"),
        (["/app/prog", "--bind", "/etc:/a:/b:/c"], "more than SRC:DST:OPTIONS"),
        (["/app/prog", "--bind", "/x.sif:/y:image-src=/"], "binds out of another image"),
        (["/app/prog", "--bind", "/etc:/app/prog/x"], "cannot be a target"),
        (["/app/prog", "--env", "LD_LIBRARY_PATH"], "not of the form K=V"),
        (["/app/prog", "--cwd", "app"], "not an absolute path"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_2(root: Path, argv: list[str], words: str, capsys: Capture) -> None:
    assert main(["ldd", str(root), *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_musl_cannot_be_decided(tmp_path: Path, capsys: Capture) -> None:
    library(tmp_path / "lib/ld-musl-x86_64.so.1", source="int start;")
    library(tmp_path / "usr/lib/liba.so")
    assert main(["ldd", str(tmp_path), "/usr/lib/liba.so"]) == 3
    assert "CANNOT TELL: this image has musl" in capsys.readouterr().out
    assert main(["ldd", str(tmp_path), "--all", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["files"] == {}
    assert "musl" in data["undecided"]


@pytest.mark.parametrize(("minor", "differ"), [(31, True), (41, True), (42, False)])
def test_where_a_start_by_name_loads_others_than_ld_so_both_are_said(
    minor: int, differ: bool, tmp_path: Path, capsys: Capture
) -> None:
    """$ORIGIN behind a link: of the path as given where ld.so is given it, up to 2.41, and of the file itself else."""
    fabric_builder.c_library(tmp_path, minor)
    program(tmp_path / "app/prog", library(tmp_path / "app/liba.so"), *runpath("$ORIGIN"))
    (tmp_path / "link").symlink_to("app/prog")
    assert main(["ldd", str(tmp_path), "/link", "--json"]) == (1 if differ else 0)
    data = json.loads(capsys.readouterr().out)
    given = data["files"]["/link"]["closure"]
    assert given["liba.so"] == (None if differ else "/app/liba.so")
    assert data.get("by_kernel", {}) == ({"/link": data["by_kernel"]["/link"]} if differ else {})
    main(["ldd", str(tmp_path), "/link"])
    printed = capsys.readouterr().out
    assert ("/link, given to ld.so (`ld.so /link`)" in printed) is differ
    if differ:
        assert data["by_kernel"]["/link"]["closure"]["liba.so"] == "/app/liba.so"
        assert "/link, started by its name, which loads others" in printed
    assert main(["ldd", str(tmp_path), "/app/prog", "--json"]) == 0
    assert "by_kernel" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("variable", "is_noted"),
    [
        ("GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2_Usable", True),
        ("GLIBC_TUNABLES=glibc.malloc.check=3:glibc.rtld.optional_static_tls=4096", True),
        ("GLIBC_TUNABLES=glibc.malloc.check=3", False),
        ("LD_AUDIT=/opt/audit.so", True),
        ("LD_AUDIT=", False),
    ],
)
def test_what_is_set_for_the_loader_and_not_modelled_is_noted(
    variable: str, is_noted: bool, root: Path, capsys: Capture
) -> None:
    main(["ldd", str(root), "/app/prog", "--env", variable, "--json"])
    notes = json.loads(capsys.readouterr().out).get("notes", [])
    assert any("is not known here" in note for note in notes) is is_noted, notes


@pytest.mark.parametrize(("mode", "word"), [(0o4755, "setuid"), (0o2755, "setgid"), (0o755, None)])
def test_of_a_program_with_the_rights_of_another_it_is_said_that_the_search_path_may_not_count(
    mode: int, word: str | None, root: Path, capsys: Capture
) -> None:
    (root / "app/prog").chmod(mode)
    main(["ldd", str(root), "/app/prog", "--json"])
    notes = json.loads(capsys.readouterr().out).get("notes", [])
    assert [note for note in notes if f"/app/prog is {word}" in note] == notes
    assert bool(notes) is (word is not None)


def test_a_part_of_the_c_library_that_a_bind_brings_is_said_to_be_of_another_build(root: Path, capsys: Capture) -> None:
    program(root / "app/sums", library(root / "lib64/libm.so.6"), root / "lib64/libc.so.6")
    main(["ldd", str(root), "/app/sums", "--json"])
    assert "notes" not in json.loads(capsys.readouterr().out)
    node = root.parent / "node"
    fabric_builder.host(node)
    library(node / "usr/lib64/libm.so.6", node / "lib64/libc.so.6")
    with open_image(node) as image:
        write_snapshot(
            scan_host({}, root=image.root, include=[Path("/usr/lib64/libm.so.6")]), root.parent / "host.json"
        )
    options = ["--host", str(root.parent / "host.json"), "--bind", "/usr/lib64/libm.so.6:/lib64/libm.so.6"]
    main(["ldd", str(root), "/app/sums", *options, "--json"])
    (note,) = (note for note in json.loads(capsys.readouterr().out)["notes"] if "two builds" in note)
    assert "/lib64/libm.so.6: the one is of the host, the other of the image" in note


def test_binds_are_read_as_engines_read_them() -> None:
    binds = parse_binds(r"/a,/b:/c,/d:/e:ro,rw,/f\:g\,h:/i,/j/:/k")
    assert [(bind.source, bind.target) for bind in binds] == [
        ("/a", "/a"),
        ("/b", "/c"),
        ("/d", "/e"),
        ("/f:g,h", "/i"),
        ("/j", "/k"),
    ]
    assert [parse_binds(str(bind))[0] for bind in binds] == list(binds)
    # an option only where it is one whole, behind a source and a target: else it is the source of the next bind
    assert [bind.source for bind in parse_binds("/data,root")] == ["/data", str(Path.cwd() / "root")]
    assert [bind.source for bind in parse_binds("/data,ro")] == ["/data", str(Path.cwd() / "ro")]
    assert [bind.source for bind in parse_binds("/a:/b:ro,rwx")] == ["/a", str(Path.cwd() / "rwx")]
    assert [str(bind) for bind in parse_binds("/a:/b:ro,id=2,/c")] == ["/a:/b:ro", "/c"]
    with pytest.raises(BadInputError):
        parse_binds(":/a")
