"""A second table of the loader's rules: what a process has already, and LD_PRELOAD."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared.elf_builder import exe, new_runpath, patched, so
from tests.shared.elf_oracles import Ask, compare

_ROWS: list[Callable[[Path], Ask]] = []


def row(build: Callable[[Path], Ask]) -> Callable[[Path], Ask]:
    _ROWS.append(build)
    return build


# What is loaded already


@row
def soname_of_a_loaded_library_serves_a_later_need(tmp: Path) -> Ask:
    odd = so(tmp / "libodd.so")
    user = so(tmp / "libuser.so", so(tmp / "x/libx.so.1"), *new_runpath(tmp / "x"))
    prog = exe(tmp / "prog", odd, user, *new_runpath(tmp))
    so(odd, soname="libx.so.1")
    return Ask(prog)


@row
def breadth_first(tmp: Path) -> Ask:
    deep = so(tmp / "deep/libc1.so")
    flat = so(tmp / "flat/libc1.so")
    liba = so(tmp / "flat/liba.so", deep, *new_runpath(tmp / "deep"))
    return Ask(exe(tmp / "prog", liba, flat, *new_runpath(tmp / "flat")))


@row
def one_file_under_two_names(tmp: Path) -> Ask:
    liba, libb = so(tmp / "liba.so"), so(tmp / "libb.so")
    prog = exe(tmp / "prog", liba, libb, *new_runpath(tmp))
    libb.unlink()
    os.link(liba, libb)
    return Ask(prog)


@row
def one_file_behind_a_symlink(tmp: Path) -> Ask:
    liba, libb = so(tmp / "liba.so"), so(tmp / "libb.so")
    prog = exe(tmp / "prog", liba, libb, *new_runpath(tmp))
    libb.unlink()
    libb.symlink_to("liba.so")
    return Ask(prog)


@row
def circle_of_needs(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so")
    libb = so(tmp / "libb.so", liba, *new_runpath(tmp))
    so(liba, libb, *new_runpath(tmp))
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp)))


@row
def library_that_needs_itself(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so")
    copy = so(tmp / "copy/liba.so")
    so(liba, copy)
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp)))


@row
def soname_of_the_program_serves_a_need(tmp: Path) -> Ask:
    main = so(tmp / "libmain.so")
    libb = so(tmp / "libb.so", main, *new_runpath(tmp))
    so(main, libb, *new_runpath(tmp))
    return Ask(main)


@row
def file_of_the_program_is_loaded_again_under_another_name(tmp: Path) -> Ask:
    other = so(tmp / "libother.so")
    libb = so(tmp / "libb.so", other, *new_runpath(tmp))
    main = so(tmp / "libmain.so", libb, *new_runpath(tmp))
    other.unlink()
    os.link(main, other)
    return Ask(main)


@row
def diamond(tmp: Path) -> Ask:
    base = so(tmp / "libbase.so")
    left, right = (so(tmp / f"lib{side}.so", base, *new_runpath(tmp)) for side in ("left", "right"))
    return Ask(exe(tmp / "prog", left, right, *new_runpath(tmp)))


@row
def loader_is_listed_where_something_needs_it(tmp: Path) -> Ask:
    ld = so(tmp / "x/ld-linux-x86-64.so.2")
    liba = so(tmp / "liba.so", ld)
    return Ask(exe(tmp / "prog", liba, so(tmp / "libb.so"), *new_runpath(tmp)))


@row
def loader_is_listed_where_nothing_needs_it(tmp: Path) -> Ask:
    return Ask(so(tmp / "libmain.so", so(tmp / "libb.so"), *new_runpath(tmp)))


@row
def lone_library_is_called_static(tmp: Path) -> Ask:
    return Ask(so(tmp / "liba.so"))


# LD_PRELOAD


@row
def preloaded_soname_wins(tmp: Path) -> Ask:
    pre = so(tmp / "libpre.so", soname="liba.so")
    prog = exe(tmp / "prog", so(tmp / "run/liba.so"), *new_runpath(tmp / "run"))
    return Ask(prog, {"LD_PRELOAD": str(pre)})


@row
def spaces_and_colons_part_ld_preload(tmp: Path) -> Ask:
    pre = [so(tmp / f"lib{n}.so") for n in range(3)]
    prog = exe(tmp / "prog", so(tmp / "liba.so"), *new_runpath(tmp))
    return Ask(prog, {"LD_PRELOAD": f" {pre[1]}:{pre[0]}  {pre[2]} "})


@row
def preload_by_name_uses_the_rules_of_the_program(tmp: Path) -> Ask:
    so(tmp / "libpre.so", so(tmp / "libdeep.so"), *new_runpath(tmp))
    return Ask(exe(tmp / "prog", so(tmp / "liba.so"), *new_runpath(tmp)), {"LD_PRELOAD": "libpre.so"})


@row
def preload_twice(tmp: Path) -> Ask:
    pre = so(tmp / "libpre.so")
    prog = exe(tmp / "prog", so(tmp / "liba.so"), pre, *new_runpath(tmp))
    return Ask(prog, {"LD_PRELOAD": f"{pre} libpre.so {pre}"})


@row
def preloads_that_are_ignored(tmp: Path) -> Ask:
    (tmp / "text").write_text("no library at all\n" * 9)
    (tmp / "empty").touch()
    (tmp / "folder").mkdir()
    small = so(tmp / "small.so")
    patched(small, 4, b"\1")
    prog = exe(tmp / "prog", so(tmp / "liba.so"), *new_runpath(tmp))
    names = ["libnowhere.so", tmp / "none.so", tmp / "text", tmp / "empty", tmp / "folder", small, prog]
    return Ask(prog, {"LD_PRELOAD": ":".join(map(str, names))})


@pytest.mark.parametrize("build", _ROWS, ids=lambda build: build.__name__)
def test_the_model_says_what_ld_so_says(build: Callable[[Path], Ask], tmp_path: Path) -> None:
    compare(build, tmp_path)
