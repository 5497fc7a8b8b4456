"""`lumiimg ldd`: the JSON contract, the tree, the exit codes; the loader itself is the oracle for paths."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from tests.shared import fabric_builder
from tests.shared.elf_builder import LOADER, library, program, runpath, trace
from tests.shared.programs import EVERYTHING

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
    code, files = ldd(capsys, root, "--cwd", "/", "/app/prog", "--json", "/app/liba.so")
    assert (code, set(files)) == (1, {"/app/prog", "/app/liba.so"})
    assert files["/app/prog"]["closure"] == {"liba.so": "/app/liba.so", "libb.so": None}
    assert files["/app/prog"]["errors"] == ["libb.so: cannot open shared object file: No such file or directory"]
    assert main(["ldd", str(root), "/app/prog"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "/app/prog would not load",
        "why: libb.so: cannot open shared object file: No such file or directory",
        "",
        "/app/prog",
        "└── liba.so  => /app/liba.so  [RUNPATH]",
        "    └── ✗ libb.so => not found",
    ]


def notes(capsys: Capture, *argv: str | Path) -> list[str]:
    main(["ldd", *map(str, argv), "--json"])
    found: list[str] = json.loads(capsys.readouterr().out).get("notes", [])
    return found


def test_what_the_model_does_not_know_of_the_loader_is_noted(root: Path, capsys: Capture) -> None:
    for variable, is_noted in (
        ("GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2_Usable", True),
        ("GLIBC_TUNABLES=glibc.malloc.check=3:glibc.rtld.optional_static_tls=4096", True),
        ("GLIBC_TUNABLES=glibc.malloc.check=3", False),
        ("LD_AUDIT=/opt/audit.so", True),
        ("LD_AUDIT=", False),
    ):
        reported = notes(capsys, root, "/app/prog", "--env", variable)
        assert any("not modelled" in note for note in reported) is is_noted, variable


def test_all_takes_every_program_and_library_once(root: Path, capsys: Capture) -> None:
    (root / "app/link.so").symlink_to("liba.so")
    (root / "app/script.so").write_text("/* GNU ld script */")
    (root / "app/object.o").write_bytes((root / "app/liba.so").read_bytes()[:16] + b"\1\0" + bytes(100))
    _, files = ldd(capsys, root, "--all")
    own = {path for path in files if path.startswith("/app/")}
    assert own == {"/app/prog", "/app/liba.so"}
    small = (root / "app/liba.so").read_bytes()
    (root / "app/small.so").write_bytes(small[:4] + b"\1" + small[5:])
    assert notes(capsys, root, "--all") == ["not checked: 1 file for 32 bits or another byte order"]
    _, named = ldd(capsys, root, "/app/small.so")
    assert named["/app/small.so"]["errors"] == ["/app/small.so: wrong ELF class: ELFCLASS32"]
    for number in range(30):
        (root / f"opt/copy{number}.so").write_bytes((root / "app/liba.so").read_bytes())
    assert main(["ldd", str(root), "--all"]) == 1
    text = capsys.readouterr().out
    assert "✗ /app/prog" in text
    assert "✗ /opt/b/libb.so" not in text
    assert "more lines with --verbose)" in text
    assert "missing most often: libb.so (32)" in text
    (root / "app/cut.so").write_bytes((root / "app/liba.so").read_bytes()[:3000])
    main(["ldd", str(root), "--all", "--verbose"])
    cut = " ".join(capsys.readouterr().out.split())
    assert "✗ /app/cut.so: " in cut
    assert "/app/cut.so: /app/cut.so: " not in cut


def test_wrong_usage_is_one_line_and_exit_2(root: Path, capsys: Capture) -> None:
    for argv, words in (
        ([], "no file is named"),
        (["/app/prog", "--all"], "both --all and files"),
        (["/app/none"], "cannot be looked up in the image"),
        (["/app/prog", "--bind", "/no/such/file"], "/no/such/file cannot be bound"),
        (["/app/prog", "--bind", "/etc:etc"], "not an absolute path"),
        (["/app/prog", "--bind", "/etc:"], "not an absolute path"),
        (["/app/prog", "--bind", "/etc:/a:/b:/c"], "more than SRC:DST:OPTIONS"),
        (["/app/prog", "--bind", "/etc:/a:ro,zz,/b:/c:Ro"], "'Ro' is not an option of a bind"),
        (["/app/prog", "--bind", "/x.sif:/y:image-src=/"], "binds from another image"),
        (["/app/prog", "--bind", "/etc:/app/prog/x"], "cannot be a target"),
        (["/app/prog", "--env", "LD_LIBRARY_PATH"], "not of the form K=V"),
        (["/app/prog", "--cwd", "app"], "not an absolute path"),
    ):
        assert main(["ldd", str(root), *argv]) == 2, argv
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err


def test_a_long_chain_is_no_trouble(tmp_path: Path, capsys: Capture) -> None:
    folder = fabric_builder.image(tmp_path / "root", plugin=False) / "usr/lib64"
    first = library(folder / "lib0000.so")
    pattern = library(folder / "lib0001.so", first).read_bytes()
    for number in range(2, 1200):
        below, own = f"lib{number - 1:04}.so".encode(), f"lib{number:04}.so".encode()
        content = pattern.replace(b"lib0001.so", own).replace(b"lib0000.so", below)
        (folder / own.decode()).write_bytes(content)
    assert main(["ldd", str(tmp_path / "root"), "/usr/lib64/lib1199.so"]) == 0
    assert "lib0000.so => /usr/lib64/lib0000.so" in re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    if EVERYTHING:  # three seconds
        library(folder / "librccl-net.so", folder / "lib1199.so", source=fabric_builder.PLUGIN)
        host = fabric_builder.snapshot(fabric_builder.host(tmp_path / "node"))
        words = ["explain", str(tmp_path / "root"), "--host", str(host), "--html", str(tmp_path / "page.html")]
        assert main([*words, "--verbose"]) in {ExitCode.GOOD, ExitCode.NO, ExitCode.UNDECIDED}
        assert "image lib0000.so" in re.sub(r"[│└─\s]+", " ", capsys.readouterr().out)


def test_musl_cannot_be_decided(tmp_path: Path, capsys: Capture) -> None:
    library(tmp_path / "lib/ld-musl-x86_64.so.1", source="int start;")
    library(tmp_path / "usr/lib/liba.so")
    assert main(["ldd", str(tmp_path), "/usr/lib/liba.so"]) == 3
    assert "CANNOT TELL: this image has musl" in capsys.readouterr().out
    assert main(["ldd", str(tmp_path), "--all", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["files"] == {}
    assert "musl" in data["undecided"]


def test_where_a_start_by_name_loads_others_than_ld_so_both_are_reported(tmp_path: Path, capsys: Capture) -> None:
    """$ORIGIN through a link: up to 2.41, ld.so given the path uses that path; otherwise it is that of the file."""
    program(tmp_path / "app/prog", library(tmp_path / "app/liba.so"), *runpath("$ORIGIN"))
    (tmp_path / "link").symlink_to("app/prog")
    for minor, code in ((41, 1), (42, 0)):
        fabric_builder.c_library(tmp_path, minor)
        assert main(["ldd", str(tmp_path), "/link", "--json"]) == code, minor
        by_kernel = json.loads(capsys.readouterr().out).get("by_kernel", {})
        assert [one["closure"]["liba.so"] for one in by_kernel.values()] == ["/app/liba.so"] * code
        main(["ldd", str(tmp_path), "/link"])
        assert ("/link, started by its name, which loads others" in capsys.readouterr().out) is bool(code)


def test_a_program_with_a_loader_of_another_version_than_its_c_library_may_crash_or_hang(
    root: Path, capsys: Capture
) -> None:
    """With those of 2.36-9+deb12u14, 2.36-9+deb12u7 and 2.43-7, `ld.so --list` prints nothing, and 2.36 with 2.43 ends.

    With 2.41 and 2.43, `ls` ran, `bash` crashed, and a program with a second thread hung.
    """
    own = root / "lib64/libc.so.6"
    program(root / "app/sums", own, *runpath("$ORIGIN"))
    for minor, build, code in ((36, "stand-in", 0), (36, "other one", 0), (35, "stand-in", 1)):
        library = fabric_builder.c_library(root.parent / build / str(minor), minor)
        (root / "app/libc.so.6").write_bytes(library.read_bytes().replace(b"(stand-in)", f"({build[:8]:8})".encode()))
        assert main(["ldd", str(root), "/app/sums", "--json"]) == code, (minor, build)
        answer = json.loads(capsys.readouterr().out)
        assert answer["files"]["/app/sums"]["errors"] == []
        started = answer.get("by_kernel", {}).get("/app/sums", {}).get("errors", [])
        assert ["may crash or hang: ld.so and libc.so.6 are of two versions" in error for error in started] == [
            True
        ] * code
        assert any("two builds" in note for note in answer.get("notes", ())) is (build == "other one")
    assert main(["ldd", str(root), "/app/sums"]) == 1
    assert "/app/sums, started by its name\n" in capsys.readouterr().out


def test_a_c_library_of_a_sysroot_is_not_taken_for_a_program(root: Path, capsys: Capture) -> None:
    """libc.so.6 names its loader so that it can print its version; in conda's sysroot, that is the one in /lib64."""
    interpreter = f'const char interp[] __attribute__((used, section(".interp"))) = "{LOADER}";'
    banner = 'const char banner[] = "GNU C Library (other) stable release version 2.17.\\n";'
    library(root / "opt/sysroot/libc.so.6", source=interpreter + banner)
    assert main(["ldd", str(root), "/opt/sysroot/libc.so.6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"schema", "files"}


def test_a_part_of_the_c_library_that_a_bind_brings_is_reported_as_of_another_build(
    root: Path, capsys: Capture
) -> None:
    program(root / "app/sums", library(root / "lib64/libm.so.6"), root / "lib64/libc.so.6")
    assert notes(capsys, root, "/app/sums") == []
    node = fabric_builder.host(root.parent / "node")
    library(node / "usr/lib64/libm.so.6", node / "lib64/libc.so.6")
    host = fabric_builder.snapshot(node, "/usr/lib64/libm.so.6")
    options: list[str | Path] = ["--host", host, "--bind", "/usr/lib64/libm.so.6:/lib64/libm.so.6"]
    (note,) = (note for note in notes(capsys, root, "/app/sums", *options) if "two builds" in note)
    assert "/lib64/libm.so.6: one is from the host, the other from the image" in note
