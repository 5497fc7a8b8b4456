"""A table of the loader's rules: each row is a set of tiny files on which the real ld.so and the model are compared.

Names, paths, order, missing libraries, and every word on standard error must be equal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.elf import MissingVersion, Process
from lumiimg.image import open_image
from tests.shared.elf_builder import entry_at, exe, header_at, patched, rpath, runpath, so, with_versions
from tests.shared.elf_oracles import Ask, compare

_AUXILIARY, _RUNPATH, _DEBUG = 0x7FFFFFFD, 29, 21

# The text of a search path: a tree of folders that each contain the library, with each way of giving a path

_PLACES = (
    "here",
    "here/sub",
    "a",
    "b",
    "d-x",
    "d",
    "lib/x86_64-linux-gnu",
    "lib64",
    "lib",
    "x86_64",
    "haswell",
    "$HOME",
)
_TEXTS = (
    *("", ":", "::", "/nowhere:", "/nowhere::/none", ":/nowhere", "T/none;T/b", "T/none:T/b", "T/a;T/b"),
    *("./none:sub//", "sub", "../b", "T/a///:T/a", "T//./a/../a", "/:T/a", "///:T/a", "T/file:T/a"),
    *(
        "$ORIGIN/../a",
        "${ORIGIN}/../b",
        "$ORIGIN",
        "$ORIGIN-x",
        "$ORIGINS/a:$ORIGIN_/a:$LIB2:T/b",
        "${ORIGIN/a:$:$$ORIGIN/a",
    ),
    *("T/${LIB}", "T/$LIB", "T/$PLATFORM", "T/${PLATFORM}", "T/$HOME", "T/x$LIB:T/a"),
)
"""T is the top folder. The working directory is `here`; the program is in `d`."""


@pytest.mark.parametrize("way", ["LD_LIBRARY_PATH", "DT_RUNPATH", "DT_RPATH"])
def test_the_text_of_a_search_path_is_read_as_ld_so_reads_it(way: str, tmp_path: Path) -> None:
    libraries = [so(tmp_path / place / "liba.so") for place in _PLACES]
    (tmp_path / "file").touch()
    for text in _TEXTS:
        path = text.replace("T", str(tmp_path))
        environment = {way: path} if way == "LD_LIBRARY_PATH" else {}
        tags = runpath(path) if way == "DT_RUNPATH" else rpath(path) if way == "DT_RPATH" else ()
        compare(Ask(exe(tmp_path / "d/prog", libraries[0], *tags), environment, tmp_path / "here"))


# Rules of one line


def _program(tmp: Path, *arguments: Path | str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ask:
    return Ask(exe(tmp / "prog", *arguments), env or {}, cwd)


def _chain(tmp: Path, *arguments: str) -> Path:
    """Return a library that needs another one from another folder."""
    return so(tmp / "a/liba.so", so(tmp / "b/libb.so"), *arguments)


def _with_both(path: Path, *arguments: Path | str, runpath: Path | str) -> Path:
    """Link a library with both DT_RUNPATH and DT_RPATH, which linkers do not produce."""
    return retagged(so(path, *arguments, "-f", str(runpath)), _AUXILIARY, _RUNPATH)


def retagged(path: Path, tag: int, new: int) -> Path:
    return patched(path, entry_at(path, tag), new.to_bytes(8, "little"))


_RULES: dict[str, Callable[[Path], Ask]] = {
    "rpath serves the grandchild": lambda t: _program(t, _chain(t), *rpath(t / "a", t / "b")),
    "runpath does not serve the grandchild": lambda t: _program(t, _chain(t), *runpath(t / "a", t / "b")),
    "rpath of ancestors is ignored beside runpath": lambda t: _program(
        t, _chain(t, *runpath(t / "none")), *rpath(t / "a", t / "b")
    ),
    "rpath of an ancestor with runpath is ignored": lambda t: Ask(
        _with_both(t / "libmain.so", _chain(t), *rpath(t / "b"), runpath=t / "a")
    ),
    "own rpath is ignored beside runpath": lambda t: Ask(
        _with_both(t / "libmain.so", so(t / "old/liba.so"), *rpath(t / "old"), runpath=so(t / "new/liba.so").parent)
    ),
    "nodeflib shuts out default directories and their cache entries": lambda t: _program(
        t, so(t / "x/libc.so.6"), "-z", "nodefaultlib"
    ),
    "nodeflib leaves runpath": lambda t: _program(t, so(t / "x/libc.so.6"), "-z", "nodefaultlib", *runpath(t / "x")),
    "libraries of the system": lambda t: _program(t, so(t / "x/libc.so.6"), so(t / "x/libm.so.6")),
    "needed with $ORIGIN is opened without a search": lambda t: _program(
        t, so(t / "sub/liba.so", soname="$ORIGIN/sub/liba.so")
    ),
    "needed with a relative path": lambda t: _program(t, so(t / "sub/liba.so", soname="sub/liba.so"), cwd=t),
    "needed with an absolute path that is gone": lambda t: _program(
        t, so(t / "sub/liba.so", soname=f"{t}/gone/liba.so"), so(t / "libb.so"), *runpath(t)
    ),
    "name longer than any file may have": lambda t: _program(
        t, so(t / "liba.so", soname=f"lib{'x' * 300}.so"), *runpath(t), env={"LD_LIBRARY_PATH": str(t)}
    ),
    "nodlopen is no matter at the start": lambda t: _program(t, so(t / "liba.so", "-z", "nodlopen"), *runpath(t)),
    "executable stack is no matter at the start": lambda t: _program(
        t, so(t / "liba.so", "-z", "execstack"), *runpath(t)
    ),
    "the loader is listed where something needs it": lambda t: _program(
        t, so(t / "liba.so", so(t / "x/ld-linux-x86-64.so.2")), so(t / "libb.so"), *runpath(t)
    ),
    "the loader is listed where nothing needs it": lambda t: Ask(so(t / "libmain.so", so(t / "libb.so"), *runpath(t))),
    "a lone library is called static": lambda t: Ask(so(t / "liba.so")),
    "a preloaded soname wins": lambda t: _program(
        t,
        so(t / "run/liba.so"),
        *runpath(t / "run"),
        env={"LD_PRELOAD": str(so(t / "libpre.so", soname="liba.so"))},
    ),
    "versions of a library that is missing": lambda t: Ask(_needs_v2(t)),
    "a library without versions serves all": lambda t: Ask(
        _needs_v2(t, so(t / "old/libv.so", source="int g_V2(void) { return 0; }"))
    ),
    "a version that is there": lambda t: Ask(_needs_v2(t, with_versions(t / "old/libv.so", "V1", "V2", "V3"))),
    "a version that is missing": lambda t: Ask(_needs_v2(t, with_versions(t / "old/libv.so", "V1"))),
    "versions of a library that is not needed any more": lambda t: Ask(
        retagged(_needs_v2(t, with_versions(t / "old/libv.so", "V1", "V2")), 1, _DEBUG)
    ),
}

_CALLS_V2 = "int g_V2(void); void start(void) { g_V2(); }"


def _needs_v2(tmp: Path, _there: Path | None = None) -> Path:
    """Return a program that needs V2 of a library, which is searched for in `old`."""
    new = with_versions(tmp / "new/libv.so", "V1", "V2")
    return exe(tmp / "prog", new, *runpath(tmp / "old"), source=_CALLS_V2)


# Rules of more lines


def row(build: Callable[[Path], Ask]) -> Callable[[Path], Ask]:
    _RULES[build.__name__] = build
    return build


@row
def empty_runpath_switches_rpath_off(tmp: Path) -> Ask:
    prog = so(tmp / "libmain.so", so(tmp / "a/liba.so"), *rpath(tmp / "a"), "-f", "x")
    at = entry_at(prog, _AUXILIARY)
    return Ask(patched(retagged(prog, _AUXILIARY, _RUNPATH), at + 8, bytes(8)))


@row
def ld_library_path_beats_runpath(tmp: Path) -> Ask:
    liba = so(tmp / "run/liba.so")
    so(tmp / "env/liba.so")
    return Ask(exe(tmp / "prog", liba, *runpath(tmp / "run")), {"LD_LIBRARY_PATH": f"{tmp}/env"})


@row
def rpath_beats_ld_library_path(tmp: Path) -> Ask:
    liba = so(tmp / "r/liba.so")
    so(tmp / "env/liba.so")
    return Ask(exe(tmp / "prog", liba, *rpath(tmp / "r")), {"LD_LIBRARY_PATH": f"{tmp}/env"})


@row
def nearest_rpath_comes_first(tmp: Path) -> Ask:
    libb = so(tmp / "near/libb.so")
    so(tmp / "far/libb.so")
    liba = so(tmp / "far/liba.so", libb, *rpath(tmp / "near"))
    return Ask(exe(tmp / "prog", liba, *rpath(tmp / "far")))


@row
def relative_runpath(tmp: Path) -> Ask:
    libb = so(tmp / "sub/deep/libb.so")
    liba = so(tmp / "sub/liba.so", libb, *runpath("$ORIGIN/deep"))
    return Ask(exe(tmp / "prog", liba, *runpath("sub")), {}, tmp)


@row
def needed_with_a_token_and_no_slash_is_searched(tmp: Path) -> Ask:
    so(tmp / "a/x86_64-linux-gnu")
    liba = so(tmp / "a/lib.so", soname="$LIBx")
    return Ask(exe(tmp / "prog", liba, *runpath(tmp / "a")))


@row
def link_that_leads_in_a_circle_below_a_level_is_forgotten(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "loop/glibc-hwcaps/x86-64-v2").mkdir(parents=True)
    (tmp / "loop/glibc-hwcaps/x86-64-v2/liba.so").symlink_to("liba.so")
    return Ask(exe(tmp / "prog", good), {"LD_LIBRARY_PATH": f"{tmp}/loop:{tmp}/good"})


@row
def name_that_is_not_utf8(tmp: Path) -> Ask:
    good = so(tmp / "libaaaa.so")
    prog = exe(tmp / "prog", good, *runpath(tmp))
    prog.write_bytes(prog.read_bytes().replace(b"libaaaa.so", b"lib\xff\xfe\xe9a.so"))
    good.rename(tmp / os.fsdecode(b"lib\xff\xfe\xe9a.so"))
    return Ask(prog)


@row
def end_mark_behind_the_end_of_the_dynamic_segment(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so", so(tmp / "libb.so"), *runpath(tmp))
    patched(liba, header_at(liba, 2) + 32, b"\x20" + bytes(7))
    return Ask(exe(tmp / "prog", liba, *runpath(tmp)))


@row
def legacy_directories_are_for_old_versions_only(tmp: Path) -> Ask:
    for name in ("tls", "haswell", "x86_64", "tls/x86_64", "tls/haswell/avx512_1/x86_64"):
        so(tmp / name / "liba.so")
    return Ask(exe(tmp / "prog", so(tmp / "liba.so"), *runpath(tmp)))


@row
def weak_version_that_is_missing(tmp: Path) -> Ask:
    with_versions(tmp / "old/libv.so", "V1")
    prog = _needs_v2(tmp)
    record = re.search(rb"\x92\x05\0\0(\0\0)..", prog.read_bytes())  # Vernaux of V2; no linker option makes it weak
    assert record
    return Ask(patched(prog, record.start(1), b"\2\0"))


@row
def base_version_serves_a_need_of_that_name(tmp: Path) -> Ask:
    (tmp / "old").mkdir()
    script = tmp / "old/libv.map"
    script.write_text("W { global: g_V2; };")
    so(tmp / "old/libv.so", "--version-script", script, source="int g_V2(void) { return 0; }", soname="V2")
    return Ask(_needs_v2(tmp))


@row
def versions_of_a_library_whose_soname_alone_is_loaded(tmp: Path) -> Ask:
    with_versions(tmp / "new/libv.so", "V1", "V2")
    prog = retagged(_needs_v2(tmp), 1, _DEBUG)
    pre = tmp / "libpre.so"
    pre.write_bytes((tmp / "new/libv.so").read_bytes())
    return Ask(prog, {"LD_PRELOAD": str(pre)})


@row
def packed_relocations_without_the_version_of_libc(tmp: Path) -> Ask:
    (tmp / "old").mkdir()
    libc = with_versions(tmp / "old/libc.so.6", "V2")
    source = "static int a; int *p[4] = {&a, &a, &a, &a};" + _CALLS_V2
    prog = exe(tmp / "prog", libc, "-z", "pack-relative-relocs", *runpath(tmp / "old"), source=source)
    return Ask(prog)


@row
def soname_of_a_loaded_library_serves_a_later_need(tmp: Path) -> Ask:
    odd = so(tmp / "libodd.so")
    user = so(tmp / "libuser.so", so(tmp / "x/libx.so.1"), *runpath(tmp / "x"))
    prog = exe(tmp / "prog", odd, user, *runpath(tmp))
    so(odd, soname="libx.so.1")
    return Ask(prog)


@row
def breadth_first(tmp: Path) -> Ask:
    deep = so(tmp / "deep/libc1.so")
    flat = so(tmp / "flat/libc1.so")
    liba = so(tmp / "flat/liba.so", deep, *runpath(tmp / "deep"))
    return Ask(exe(tmp / "prog", liba, flat, *runpath(tmp / "flat")))


@row
def one_file_under_two_names(tmp: Path) -> Ask:
    liba, libb, libc = (so(tmp / f"lib{name}.so") for name in ("a", "b", "c1"))
    prog = exe(tmp / "prog", liba, libb, libc, *runpath(tmp))
    libb.unlink()
    os.link(liba, libb)
    libc.unlink()
    libc.symlink_to("liba.so")
    return Ask(prog)


@row
def circle_of_needs(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so")
    libb = so(tmp / "libb.so", liba, *runpath(tmp))
    so(liba, libb, *runpath(tmp))
    return Ask(exe(tmp / "prog", liba, *runpath(tmp)))


@row
def soname_of_the_program_serves_a_need(tmp: Path) -> Ask:
    main = so(tmp / "libmain.so")
    libb = so(tmp / "libb.so", main, *runpath(tmp))
    so(main, libb, *runpath(tmp))
    return Ask(main)


@row
def file_of_the_program_is_loaded_again_under_another_name(tmp: Path) -> Ask:
    other = so(tmp / "libother.so")
    libb = so(tmp / "libb.so", other, *runpath(tmp))
    main = so(tmp / "libmain.so", libb, *runpath(tmp))
    other.unlink()
    os.link(main, other)
    return Ask(main)


@row
def spaces_and_colons_part_ld_preload(tmp: Path) -> Ask:
    pre = [so(tmp / f"lib{n}.so") for n in range(3)]
    prog = exe(tmp / "prog", so(tmp / "liba.so"), *runpath(tmp))
    return Ask(prog, {"LD_PRELOAD": f" {pre[1]}:{pre[0]}  {pre[2]} {pre[1].name} {pre[1]}"})


@row
def preload_by_name_uses_the_rules_of_the_program(tmp: Path) -> Ask:
    so(tmp / "libpre.so", so(tmp / "libdeep.so"), *runpath(tmp))
    return Ask(exe(tmp / "prog", so(tmp / "liba.so"), *runpath(tmp)), {"LD_PRELOAD": "libpre.so"})


@row
def preloads_that_are_ignored(tmp: Path) -> Ask:
    (tmp / "text").write_text("no library at all\n" * 9)
    (tmp / "empty").touch()
    (tmp / "folder").mkdir()
    small = so(tmp / "small.so")
    patched(small, 4, b"\1")
    prog = exe(tmp / "prog", so(tmp / "liba.so"), *runpath(tmp))
    names = ["libnowhere.so", tmp / "none.so", tmp / "text", tmp / "empty", tmp / "folder", small, prog]
    return Ask(prog, {"LD_PRELOAD": ":".join(map(str, names))})


@row
def link_in_a_circle_ends_one_list_and_not_the_next(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "loop").mkdir()
    (tmp / "loop/liba.so").symlink_to("liba.so")
    prog = exe(tmp / "prog", good, *runpath(tmp / "good"))
    return Ask(prog, {"LD_LIBRARY_PATH": f"{tmp}/loop:{tmp}/good"})


@row
def origin_of_a_library_is_the_directory_as_it_was_opened(tmp: Path) -> Ask:
    libb = so(tmp / "real/libb.so")
    liba = so(tmp / "real/liba.so", libb, *runpath("$ORIGIN/sub"))
    so(tmp / "real/sub/libb.so")
    (tmp / "link").symlink_to("real")
    return Ask(exe(tmp / "prog", liba, *runpath(tmp / "link")))


@pytest.mark.parametrize("build", _RULES.values(), ids=_RULES.keys())
def test_the_model_says_what_ld_so_says(build: Callable[[Path], Ask], tmp_path: Path) -> None:
    compare(build(tmp_path))


# Files that are not libraries, or are damaged


def _first_of_two(tmp: Path, spoil: Callable[[Path], object]) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "bad").mkdir()
    bad = tmp / "bad/liba.so"
    bad.write_bytes(good.read_bytes())
    spoil(bad)
    return Ask(exe(tmp / "prog", good, *runpath(tmp / "bad", tmp / "good")))


def _made_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _made_link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


_SPOILED: dict[str, Callable[[Path], object]] = {
    "other machine": lambda path: patched(path, 18, b"\xb7\0"),
    "32 bits": lambda path: patched(path, 4, b"\1"),
    "class 3": lambda path: patched(path, 4, b"\3"),
    "text": lambda path: path.write_text("INPUT(libreal.so)\n" * 10),
    "empty": lambda path: path.write_bytes(b""),
    "four bytes": lambda path: path.write_bytes(b"\x7fELF"),
    "63 bytes": lambda path: path.write_bytes(path.read_bytes()[:63]),
    "header only": lambda path: path.write_bytes(path.read_bytes()[:64]),
    "cut in the program headers": lambda path: path.write_bytes(path.read_bytes()[:150]),
    "program headers past the end": lambda path: patched(path, 32, b"\xff\xff\xff\x7f"),
    "65535 program headers": lambda path: patched(path, 56, b"\xff\xff"),
    "no program headers": lambda path: patched(path, 56, b"\0\0"),
    "big endian": lambda path: patched(path, 5, b"\2"),
    "ident version 9": lambda path: patched(path, 6, b"\x09"),
    "OS ABI 77": lambda path: patched(path, 7, b"\x4d"),
    "OS ABI FreeBSD": lambda path: patched(path, 7, b"\x09"),
    "OS ABI GNU": lambda path: patched(path, 7, b"\x03"),
    "ABI version 1 of System V": lambda path: patched(path, 8, b"\x01"),
    "ABI version 3 of GNU": lambda path: patched(path, 7, b"\x03\x03"),
    "ABI version 4 of GNU": lambda path: patched(path, 7, b"\x03\x04"),
    "padding": lambda path: patched(path, 12, b"\1"),
    "version 5": lambda path: patched(path, 20, b"\5"),
    "relocatable": lambda path: patched(path, 16, b"\1"),
    "core": lambda path: patched(path, 16, b"\4"),
    "executable": lambda path: patched(path, 16, b"\2"),
    "phentsize 57": lambda path: patched(path, 54, b"\x39"),
    "phentsize 0": lambda path: patched(path, 54, b"\0"),
    "no dynamic segment": lambda path: patched(path, header_at(path, 2), b"\0\0\0\x60"),
    "dynamic segment without bytes": lambda path: patched(path, header_at(path, 2) + 32, bytes(8)),
    "dynamic segment of one byte": lambda path: patched(path, header_at(path, 2) + 32, b"\1" + bytes(7)),
    "misplaced segment": lambda path: patched(path, header_at(path, 1) + 8, b"\x10"),
    "unaligned segment": lambda path: patched(path, header_at(path, 1) + 48, b"\x10\0\0\0"),
    "PIE": exe,
    "directory": _made_directory,
    "dangling link": lambda path: _made_link(path, "nowhere"),
    "link to itself": lambda path: _made_link(path, "liba.so"),
    "link through a file": lambda path: _made_link(path, "/etc/passwd/x"),
    "no permission": lambda path: path.chmod(0),
}


@pytest.mark.parametrize("spoil", _SPOILED.values(), ids=_SPOILED.keys())
def test_a_spoiled_file_in_front_of_a_good_one_and_alone(spoil: Callable[[Path], object], tmp_path: Path) -> None:
    ask = _first_of_two(tmp_path, spoil)
    compare(ask)
    (tmp_path / "good/liba.so").unlink()
    compare(ask)


# What the model reports in addition to the loader's messages


def test_what_is_missing_is_known_by_its_parts(tmp_path: Path) -> None:
    missing = exe(tmp_path / "missing", _chain(tmp_path), *runpath(tmp_path / "a", tmp_path / "b"))
    of_version, pipe = _needs_v2(tmp_path, with_versions(tmp_path / "old/libv.so", "V1")), so(tmp_path / "libpipe.so")
    of_pipe = exe(tmp_path / "of_pipe", pipe, *runpath(tmp_path))
    pipe.unlink()
    os.mkfifo(pipe)  # the real loader would hang on it
    with open_image(Path("/")) as image:
        lost, old, never = (Process(image.root).start(str(p)) for p in (missing, of_version, of_pipe))
    assert lost.errors == ["libb.so: cannot open shared object file: No such file or directory"]
    assert (lost.missing[0].chain, lost.closure["libb.so"]) == ((str(missing), "liba.so", "libb.so"), None)
    assert old.missing_versions == [MissingVersion(f"{tmp_path}/old/libv.so", "V2", str(of_version))]
    assert never.errors[0].startswith(f"{pipe}: not a regular file")
