"""dlopen: a small C program calls it and prints the result; the model must predict the same, word for word."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.elf import Process
from lumiimg.image import open_image
from tests.shared.elf_builder import (
    LOADER,
    exe,
    patched,
    rpath,
    runpath,
    settings_here,
    so,
)
from tests.shared.programs import needs

if TYPE_CHECKING:
    from lumiimg.elf import LoadResult

_FIXTURES = Path(__file__).parents[1] / "fixtures/elf"


@dataclass(frozen=True)
class Opened:
    """The result of one dlopen."""

    new: tuple[str, ...]
    error: str | None


def opener(tmp: Path, *, caller: tuple[str, ...] = (), program: tuple[str | Path, ...] = ()) -> Path:
    """Link the program, and a library from which it can call dlopen, too (`@name`)."""
    if not Path(LOADER).exists():
        needs(LOADER)
    lib = so(tmp / "libcaller.so", _FIXTURES / "caller.o", "-lc", *caller, source="")
    return exe(tmp / "opener", _FIXTURES / "opener.o", "-lc", lib, *(program or runpath(tmp)), source="")


def ask(program: Path, *names: str, cwd: Path | None = None) -> list[Opened]:
    words = ["@:" + name[1:] if name.startswith("@") else f"n:{name}" for name in names]
    done = subprocess.run([program, *words], capture_output=True, check=True, cwd=cwd, env={"LC_ALL": "C"})
    before: list[str] = []
    answers: list[Opened] = []
    for index, part in enumerate(done.stdout.decode("utf-8", "surrogateescape").split("--\n")):
        there = re.findall(r"^has (.*)$", part, re.MULTILINE)
        error = re.search(r"^error (.*)$", part, re.MULTILINE)
        if index:
            answers.append(Opened(tuple(name for name in there if name not in before), error[1] if error else None))
        before = there
    return answers


def same(program: Path, *names: str, cwd: Path | None = None) -> list[LoadResult]:
    """Assert that both load the same objects and report the same first error, dlopen by dlopen."""
    with open_image(Path("/")) as image:
        process = Process(image.root, settings_here({}, cwd))
        assert process.start(str(program), exec_start=True).ok
        caller = process.find("libcaller.so")
        outcomes = [process.dlopen(name.lstrip("@"), caller if name.startswith("@") else None) for name in names]
    expected = [
        Opened(
            () if outcome.errors else tuple(each.path for each in outcome.objects),
            outcome.errors[0] if outcome.errors else None,
        )
        for outcome in outcomes
    ]
    assert expected == ask(program, *names, cwd=cwd)
    return outcomes


def test_rpath_of_the_caller_counts_for_it_alone(tmp_path: Path) -> None:
    libb = so(tmp_path / "mine/libb.so")
    so(tmp_path / "mine/liba.so", libb)
    program = opener(tmp_path, caller=rpath(tmp_path / "mine"))
    assert [outcome.ok for outcome in same(program, "libb.so", "@libb.so")] == [False, True]
    assert not same(program, "@liba.so")[0].ok


def test_what_is_loaded_is_not_loaded_again(tmp_path: Path) -> None:
    liba = so(tmp_path / "liba.so")
    (tmp_path / "link.so").symlink_to("liba.so")
    so(tmp_path / "other/liba.so")
    program = opener(tmp_path)
    names = ("liba.so", str(liba), f"{tmp_path}/link.so", "link.so", f"{tmp_path}/other/../liba.so")
    outcomes = same(program, *names)
    assert [(outcome.ok, outcome.objects) for outcome in outcomes[1:]] == [(True, [])] * 4
    same(program, f"{tmp_path}/other/liba.so", "liba.so", str(liba))


def test_a_dlopen_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    gone = so(tmp_path / "libgone.so")
    first = so(tmp_path / "one/libx.so")
    so(tmp_path / "libneeds.so", first, gone, *runpath(tmp_path, tmp_path / "one"))
    so(tmp_path / "two/libx.so")
    gone.unlink()
    program = opener(tmp_path, program=runpath(tmp_path, tmp_path / "two"))
    same(program, "libneeds.so", "libx.so")


def test_files_that_cannot_be_opened_so(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("INPUT(liba.so)\n" * 9)
    (tmp_path / "empty.so").touch()
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "loop.so").symlink_to("loop.so")
    so(tmp_path / "libnoopen.so", "-z", "nodlopen")
    needs_it = so(tmp_path / "libneeds.so", tmp_path / "libnoopen.so", *runpath(tmp_path))
    small = patched(so(tmp_path / "small.so"), 4, b"\1")
    other = patched(so(tmp_path / "other.so"), 18, b"\xb7\0")
    patched(so(tmp_path / "fixed.so"), 16, b"\2")
    pie = exe(tmp_path / "pie")
    program = opener(tmp_path)
    same(program, "text.so", "empty.so", "folder.so", "loop.so", f"{tmp_path}/loop.so", "libnoopen.so", str(needs_it))
    same(program, "small.so", str(small), "other.so", str(other), "fixed.so", str(pie), f"{tmp_path}/folder.so")


def _tls(path: Path, size: int, align: int = 1) -> Path:
    # a unique name: the first definition in the process would serve all uses of the same name
    name = f"{path.stem}_{size}"
    source = (
        f"__thread char {name}[{size}] __attribute__((aligned({align}))); char *f_{name}(void) {{ return {name}; }}"
    )
    return so(path, source=source)


def test_static_tls_has_room_to_the_last_byte_and_libraries_of_the_start_take_nothing(tmp_path: Path) -> None:
    big = _tls(tmp_path / "libbig.so", 100_000, align=128)
    program = opener(tmp_path, program=(big, *runpath(tmp_path)))
    with open_image(Path("/")) as image:
        process = Process(image.root, settings_here({}))
        process.start(str(program), exec_start=True)
        assert process._tls is not None
        room = process._tls.free_bytes
    assert room >= 1664
    for name, size, align in (("fits", room, 1), ("toobig", room + 1, 1), ("one", 1, 1), ("aligned", 16, 256)):
        _tls(tmp_path / f"lib{name}.so", size, align)
    names = ("libtoobig.so", "libaligned.so", "libfits.so", "libone.so")
    assert [outcome.ok for outcome in same(program, *names)][:1] == [False]
    assert [outcome.ok for outcome in same(program, "libtoobig.so", "libfits.so", "libone.so")] == [False, True, False]


@pytest.mark.threat
def test_more_objects_than_are_followed_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lumiimg.elf.loader._MAX_OBJECTS", 3)
    libs = [so(tmp_path / f"lib{n}.so", *runpath(tmp_path)) for n in range(4)]
    program = exe(tmp_path / "prog", libs[0], *runpath(tmp_path))
    so(libs[0], libs[1], *runpath(tmp_path))
    so(libs[1], libs[2], *runpath(tmp_path))
    with open_image(Path("/")) as image:
        outcome = Process(image.root).start(str(program))
    assert any("more than 3 objects" in error for error in outcome.errors)
