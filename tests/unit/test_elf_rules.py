"""A table of the loader's rules: each row is a set of tiny files, asked of the real ld.so and of the model.

Names, paths, order, what is missing, and every word on standard error must be the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.elf.loader import Process
from lumiimg.elf.objects import FoundBy, MissingVersion
from lumiimg.elf.rules import LoaderSettings
from lumiimg.image import open_image
from tests.shared.elf_builder import (
    entry_at,
    exe,
    header_at,
    new_runpath,
    old_rpath,
    patched,
    so,
    with_versions,
)
from tests.shared.elf_oracles import Ask, compare

_ROWS: list[Callable[[Path], Ask]] = []


def row(build: Callable[[Path], Ask]) -> Callable[[Path], Ask]:
    _ROWS.append(build)
    return build


def retagged(path: Path, tag: int, new: int) -> Path:
    return patched(path, entry_at(path, tag), new.to_bytes(8, "little"))


_AUXILIARY, _RUNPATH, _DEBUG = 0x7FFFFFFD, 29, 21

# Where a name is searched


@row
def runpath_with_origin(tmp: Path) -> Ask:
    return Ask(exe(tmp / "bin/prog", so(tmp / "lib/liba.so"), *new_runpath("$ORIGIN/../lib")))


@row
def rpath_serves_the_grandchild(tmp: Path) -> Ask:
    liba = so(tmp / "a/liba.so", so(tmp / "b/libb.so"))
    return Ask(exe(tmp / "prog", liba, *old_rpath(tmp / "a", tmp / "b")))


@row
def runpath_does_not_serve_the_grandchild(tmp: Path) -> Ask:
    liba = so(tmp / "a/liba.so", so(tmp / "b/libb.so"))
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp / "a", tmp / "b")))


@row
def own_rpath_is_ignored_beside_runpath(tmp: Path) -> Ask:
    liba = so(tmp / "old/liba.so")
    so(tmp / "new/liba.so")
    prog = so(tmp / "libmain.so", liba, *old_rpath(tmp / "old"), "-f", str(tmp / "new"))
    return Ask(retagged(prog, _AUXILIARY, _RUNPATH))


@row
def rpath_of_ancestors_is_ignored_beside_runpath(tmp: Path) -> Ask:
    liba = so(tmp / "a/liba.so", so(tmp / "b/libb.so"), *new_runpath(tmp / "none"))
    return Ask(exe(tmp / "prog", liba, *old_rpath(tmp / "a", tmp / "b")))


@row
def rpath_of_an_ancestor_with_runpath_is_ignored(tmp: Path) -> Ask:
    liba = so(tmp / "a/liba.so", so(tmp / "b/libb.so"))
    prog = so(tmp / "libmain.so", liba, *old_rpath(tmp / "b"), "-f", str(tmp / "a"))
    return Ask(retagged(prog, _AUXILIARY, _RUNPATH))


@row
def empty_runpath_switches_rpath_off(tmp: Path) -> Ask:
    prog = so(tmp / "libmain.so", so(tmp / "a/liba.so"), *old_rpath(tmp / "a"), "-f", "x")
    at = entry_at(prog, _AUXILIARY)
    return Ask(patched(retagged(prog, _AUXILIARY, _RUNPATH), at + 8, bytes(8)))


@row
def ld_library_path_beats_runpath(tmp: Path) -> Ask:
    liba = so(tmp / "run/liba.so")
    so(tmp / "env/liba.so")
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp / "run")), {"LD_LIBRARY_PATH": f"{tmp}/env"})


@row
def rpath_beats_ld_library_path(tmp: Path) -> Ask:
    liba = so(tmp / "r/liba.so")
    so(tmp / "env/liba.so")
    return Ask(exe(tmp / "prog", liba, *old_rpath(tmp / "r")), {"LD_LIBRARY_PATH": f"{tmp}/env"})


@row
def nearest_rpath_comes_first(tmp: Path) -> Ask:
    libb = so(tmp / "near/libb.so")
    so(tmp / "far/libb.so")
    liba = so(tmp / "far/liba.so", libb, *old_rpath(tmp / "near"))
    return Ask(exe(tmp / "prog", liba, *old_rpath(tmp / "far")))


@row
def nodeflib_shuts_out_default_directories_and_their_cache_entries(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "x/libc.so.6"), "-z", "nodefaultlib"))


@row
def nodeflib_leaves_runpath(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "x/libc.so.6"), "-z", "nodefaultlib", *new_runpath(tmp / "x")))


@row
def library_of_the_system(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "x/libc.so.6"), so(tmp / "x/libm.so.6")))


# The text of a search path


@row
def semicolons_part_ld_library_path(tmp: Path) -> Ask:
    prog = exe(tmp / "prog", so(tmp / "b/liba.so"))
    return Ask(prog, {"LD_LIBRARY_PATH": f"{tmp}/a;{tmp}/b"})


@row
def semicolons_do_not_part_runpath(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "b/liba.so"), *new_runpath(f"{tmp}/a;{tmp}/b")))


@row
def empty_element_is_the_current_directory(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "here/liba.so")), {"LD_LIBRARY_PATH": "/nowhere::/none"}, tmp / "here")


@row
def empty_last_element_is_the_current_directory(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "here/liba.so")), {"LD_LIBRARY_PATH": "/nowhere:"}, tmp / "here")


@row
def empty_ld_library_path_is_none(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "here/liba.so")), {"LD_LIBRARY_PATH": ""}, tmp / "here")


@row
def empty_element_of_runpath_is_the_current_directory(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "here/liba.so"), *new_runpath("/nowhere::/x")), {}, tmp / "here")


@row
def relative_element(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "sub/liba.so")), {"LD_LIBRARY_PATH": "./none:sub//"}, tmp)


@row
def relative_runpath(tmp: Path) -> Ask:
    libb = so(tmp / "sub/deep/libb.so")
    liba = so(tmp / "sub/liba.so", libb, *new_runpath("$ORIGIN/deep"))
    return Ask(exe(tmp / "prog", liba, *new_runpath("sub")), {}, tmp)


@row
def slashes_at_the_end_are_one(tmp: Path) -> Ask:
    prog = exe(tmp / "prog", so(tmp / "a/liba.so"))
    return Ask(prog, {"LD_LIBRARY_PATH": f"{tmp}/a///:{tmp}/a"})


@row
def slashes_within_stay(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "a/liba.so")), {"LD_LIBRARY_PATH": f"{tmp}//./a/../a"})


@row
def root_as_a_directory(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "a/liba.so")), {"LD_LIBRARY_PATH": f"///:{tmp}/a"})


@row
def lib_token_and_braces(tmp: Path) -> Ask:
    liba = so(tmp / "lib/x86_64-linux-gnu/liba.so")
    so(tmp / "lib64/liba.so")
    so(tmp / "lib/liba.so")
    return Ask(exe(tmp / "prog", liba, *new_runpath("$ORIGIN/${LIB}")))


@row
def platform_token(tmp: Path) -> Ask:
    for name in ("x86_64", "haswell", "xeon_phi"):
        so(tmp / name / "liba.so")
    return Ask(exe(tmp / "prog", tmp / "x86_64/liba.so", *new_runpath("$ORIGIN/$PLATFORM")))


@row
def token_in_ld_library_path_is_of_the_program(tmp: Path) -> Ask:
    libb = so(tmp / "bin/libb.so")
    liba = so(tmp / "bin/sub/liba.so", libb)
    return Ask(exe(tmp / "bin/prog", liba), {"LD_LIBRARY_PATH": "$ORIGIN/sub:${ORIGIN}"})


@row
def token_ends_where_a_name_ends(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "a/liba.so"), *new_runpath("$ORIGINS/a:$ORIGIN_/a:$LIB2")))


@row
def token_before_a_dash(tmp: Path) -> Ask:
    liba = so(tmp / "d-x/liba.so")
    return Ask(exe(tmp / "d/prog", liba, *new_runpath("$ORIGIN-x")))


@row
def token_without_its_brace(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "a/liba.so"), *new_runpath("${ORIGIN/a", "$", "$$ORIGIN/a")))


@row
def unknown_token_is_text(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "$HOME/liba.so"), *new_runpath(f"{tmp}/$HOME")))


# A name with a slash


@row
def needed_with_origin_is_opened_without_a_search(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "sub/liba.so", soname="$ORIGIN/sub/liba.so")))


@row
def needed_with_a_relative_path(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "sub/liba.so", soname="sub/liba.so")), {}, tmp)


@row
def needed_with_an_absolute_path_that_is_gone(tmp: Path) -> Ask:
    liba = so(tmp / "sub/liba.so", soname=f"{tmp}/gone/liba.so")
    return Ask(exe(tmp / "prog", liba, so(tmp / "libb.so"), *new_runpath(tmp)))


@row
def needed_with_a_token_and_no_slash_is_searched(tmp: Path) -> Ask:
    so(tmp / "a/x86_64-linux-gnu")
    liba = so(tmp / "a/lib.so", soname="$LIBx")
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp / "a")))


# What the kernel says of a path


@row
def link_that_leads_in_a_circle_stops_the_list(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "loop").mkdir()
    (tmp / "loop/liba.so").symlink_to("liba.so")
    return Ask(exe(tmp / "prog", good), {"LD_LIBRARY_PATH": f"{tmp}/loop:{tmp}/good"})


@row
def link_that_leads_in_a_circle_below_a_level_is_forgotten(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "loop/glibc-hwcaps/x86-64-v2").mkdir(parents=True)
    (tmp / "loop/glibc-hwcaps/x86-64-v2/liba.so").symlink_to("liba.so")
    return Ask(exe(tmp / "prog", good), {"LD_LIBRARY_PATH": f"{tmp}/loop:{tmp}/good"})


@row
def name_longer_than_any_file_may_have(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so", soname="lib" + "x" * 300 + ".so")
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp)), {"LD_LIBRARY_PATH": str(tmp)})


@row
def directory_that_is_a_file(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "file").touch()
    return Ask(exe(tmp / "prog", good, *new_runpath(tmp / "file", tmp / "good")))


@row
def name_that_is_not_utf8(tmp: Path) -> Ask:
    good = so(tmp / "libaaaa.so")
    prog = exe(tmp / "prog", good, *new_runpath(tmp))
    prog.write_bytes(prog.read_bytes().replace(b"libaaaa.so", b"lib\xff\xfe\xe9a.so"))
    good.rename(tmp / os.fsdecode(b"lib\xff\xfe\xe9a.so"))
    return Ask(prog)


@row
def end_mark_behind_the_end_of_the_dynamic_segment(tmp: Path) -> Ask:
    liba = so(tmp / "liba.so", so(tmp / "libb.so"), *new_runpath(tmp))
    patched(liba, header_at(liba, 2) + 32, b"\x20" + bytes(7))
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp)))


@row
def noopen_is_no_matter_at_the_start(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "liba.so", "-z", "nodlopen"), *new_runpath(tmp)))


@row
def executable_stack_is_no_matter_at_the_start(tmp: Path) -> Ask:
    return Ask(exe(tmp / "prog", so(tmp / "liba.so", "-z", "execstack"), *new_runpath(tmp)))


# The CPU


@pytest.mark.parametrize("present", [("v2",), ("v2", "v3"), ("v2", "v3", "v4"), ("v9",)], ids=" ".join)
def test_the_best_level_of_the_cpu_comes_first(present: tuple[str, ...], tmp_path: Path) -> None:
    def build(tmp: Path) -> Ask:
        for level in present:
            so(tmp / f"glibc-hwcaps/x86-64-{level}/liba.so")
        return Ask(exe(tmp / "prog", so(tmp / "liba.so"), *new_runpath(tmp)))

    compare(build, tmp_path)


@row
def legacy_directories_are_for_old_versions_only(tmp: Path) -> Ask:
    for name in ("tls", "haswell", "x86_64", "tls/x86_64", "tls/haswell/avx512_1/x86_64"):
        so(tmp / name / "liba.so")
    return Ask(exe(tmp / "prog", so(tmp / "liba.so"), *new_runpath(tmp)))


# Versions


_CALLS_V2 = "int g_V2(void); void start(void) { g_V2(); }"


def _needs_v2(tmp: Path) -> Path:
    new = with_versions(tmp / "new/libv.so", "V1", "V2")
    return exe(tmp / "prog", new, *new_runpath(tmp / "old"), source=_CALLS_V2)


@row
def version_that_is_there(tmp: Path) -> Ask:
    with_versions(tmp / "old/libv.so", "V1", "V2", "V3")
    return Ask(_needs_v2(tmp))


@row
def version_that_is_missing(tmp: Path) -> Ask:
    with_versions(tmp / "old/libv.so", "V1")
    return Ask(_needs_v2(tmp))


@row
def weak_version_that_is_missing(tmp: Path) -> Ask:
    with_versions(tmp / "old/libv.so", "V1")
    prog = _needs_v2(tmp)
    record = re.search(rb"\x92\x05\0\0(\0\0)..", prog.read_bytes())  # Vernaux of V2; no linker option makes it weak
    assert record
    return Ask(patched(prog, record.start(1), b"\2\0"))


@row
def library_without_versions_serves_all(tmp: Path) -> Ask:
    so(tmp / "old/libv.so", source="int g_V2(void) { return 0; }")
    return Ask(_needs_v2(tmp))


@row
def base_version_serves_a_need_of_that_name(tmp: Path) -> Ask:
    (tmp / "old").mkdir()
    script = tmp / "old/libv.map"
    script.write_text("W { global: g_V2; };")
    so(tmp / "old/libv.so", "--version-script", script, source="int g_V2(void) { return 0; }", soname="V2")
    return Ask(_needs_v2(tmp))


@row
def versions_of_a_library_that_is_missing(tmp: Path) -> Ask:
    return Ask(_needs_v2(tmp))


@row
def versions_of_a_library_that_is_not_needed_any_more(tmp: Path) -> Ask:
    with_versions(tmp / "old/libv.so", "V1", "V2")
    return Ask(retagged(_needs_v2(tmp), 1, _DEBUG))


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
    prog = exe(tmp / "prog", libc, "-z", "pack-relative-relocs", *new_runpath(tmp / "old"), source=source)
    return Ask(prog)


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


@row
def link_in_a_circle_ends_one_list_and_not_the_next(tmp: Path) -> Ask:
    good = so(tmp / "good/liba.so")
    (tmp / "loop").mkdir()
    (tmp / "loop/liba.so").symlink_to("liba.so")
    prog = exe(tmp / "prog", good, *new_runpath(tmp / "good"))
    return Ask(prog, {"LD_LIBRARY_PATH": f"{tmp}/loop:{tmp}/good"})


@row
def origin_of_a_library_is_the_directory_as_it_was_opened(tmp: Path) -> Ask:
    libb = so(tmp / "real/libb.so")
    liba = so(tmp / "real/liba.so", libb, *new_runpath("$ORIGIN/sub"))
    so(tmp / "real/sub/libb.so")
    (tmp / "link").symlink_to("real")
    return Ask(exe(tmp / "prog", liba, *new_runpath(tmp / "link")))


@pytest.mark.parametrize("build", _ROWS, ids=lambda build: build.__name__)
def test_the_model_says_what_ld_so_says(build: Callable[[Path], Ask], tmp_path: Path) -> None:
    compare(build, tmp_path)


# What is known beside the loader's words


def test_each_object_says_which_rule_found_it(tmp_path: Path) -> None:
    env, old, new = (so(tmp_path / name / f"lib{name}.so") for name in ("env", "old", "new"))
    path = so(tmp_path / "path/libpath.so", soname=str(tmp_path / "path/libpath.so"))
    pre = so(tmp_path / "libpre.so")
    user = so(tmp_path / "old/libuser.so", new, *new_runpath(tmp_path / "new"))
    libm = so(tmp_path / "gone/libm.so.6")
    prog = exe(tmp_path / "prog", env, old, user, path, libm, *old_rpath(tmp_path / "old"))
    settings = LoaderSettings(library_path=f"{tmp_path}/env", preload=(str(pre),))
    with open_image(Path("/")) as image:
        outcome = Process(image.root, settings).start(str(prog))
    rules = {each.name: each.found_by for each in outcome.objects}
    assert rules["libenv.so"] is FoundBy.LD_LIBRARY_PATH
    assert rules["libold.so"] is rules["libuser.so"] is FoundBy.RPATH
    assert rules["libnew.so"] is FoundBy.RUNPATH
    assert rules[str(pre)] is FoundBy.PRELOAD
    assert rules[str(path)] is FoundBy.PATH
    assert rules["libm.so.6"] in {FoundBy.CACHE, FoundBy.DEFAULT}
    assert (outcome.ok, outcome.closure["libnew.so"]) == (True, str(new))


def test_what_is_missing_has_who_asked_for_it(tmp_path: Path) -> None:
    liba = so(tmp_path / "a/liba.so", so(tmp_path / "b/libb.so"))
    prog = exe(tmp_path / "prog", liba, *new_runpath(tmp_path / "a", tmp_path / "b"))
    with open_image(Path("/")) as image:
        outcome = Process(image.root).start(str(prog))
    assert outcome.errors == ("libb.so: cannot open shared object file: No such file or directory",)
    assert outcome.missing[0].chain == (str(prog), "liba.so", "libb.so")
    assert outcome.closure["libb.so"] is None


def test_a_missing_version_is_known_by_its_parts(tmp_path: Path) -> None:
    with_versions(tmp_path / "old/libv.so", "V1")
    prog = _needs_v2(tmp_path)
    with open_image(Path("/")) as image:
        (missing,) = Process(image.root).start(str(prog)).missing_versions
    assert missing == MissingVersion(f"{tmp_path}/old/libv.so", "V2", str(prog))


def test_a_library_of_32_bits_is_named_where_nothing_else_is_there(tmp_path: Path) -> None:
    liba = so(tmp_path / "liba.so")
    prog = exe(tmp_path / "prog", liba, *new_runpath(tmp_path))
    patched(liba, 4, b"\1")
    with open_image(Path("/")) as image:
        outcome = Process(image.root).start(str(prog))
    assert outcome.errors == ("liba.so: wrong ELF class: ELFCLASS32",)


def test_a_fifo_in_place_of_a_library_is_an_error(tmp_path: Path) -> None:
    """The real loader would not come back from it."""
    liba = so(tmp_path / "liba.so")
    prog = exe(tmp_path / "prog", liba, *new_runpath(tmp_path))
    liba.unlink()
    os.mkfifo(liba)
    with open_image(Path("/")) as image:
        (error,) = Process(image.root).start(str(prog)).errors
    assert error.startswith(f"{liba}: no regular file")
