"""One rule of the loader a test: tiny files are linked, the real ld.so is asked, and the model must say the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lumiimg.elf.loader import Process
from lumiimg.elf.objects import FoundBy, LoadOutcome
from lumiimg.elf.rules import LoaderSettings
from lumiimg.image import open_image
from tests.shared.elf_builder import ask_loader, library, program, rpath, runpath


def _model(path: Path, environment: dict[str, str], cwd: Path | None = None) -> LoadOutcome:
    with open_image(Path("/")) as image:
        settings = LoaderSettings(
            library_path=environment.get("LD_LIBRARY_PATH"),
            preload=tuple(environment["LD_PRELOAD"].split()) if "LD_PRELOAD" in environment else (),
            cwd=str(cwd or Path.cwd()),
        )
        return Process(image.root, settings).start(str(path))


def _same(path: Path, *, cwd: Path | None = None, **environment: str) -> LoadOutcome:
    """Ask both; names and paths must be equal."""
    real = ask_loader(path, environment, cwd=cwd)
    model = _model(path, environment, cwd)
    said: dict[str, str | None] = {lib.name: lib.path for lib in model.objects[1:]}
    said |= {missing.name: None for missing in model.missing}
    expected = {name: found for name, found in real.printed.items() if "ld-linux" not in name}
    assert {name: found for name, found in said.items() if "ld-linux" not in name} == expected
    return model


def _fatal(path: Path, words: str, **environment: str) -> LoadOutcome:
    """Ask both; the loader must give up with these words, and the model must say them too."""
    real = ask_loader(path, environment)
    assert words in real.errors
    model = _model(path, environment)
    assert any(error.endswith(words) and error in real.errors for error in model.errors)
    return model


def _found_by(outcome: LoadOutcome, name: str) -> FoundBy:
    return next(lib.found_by for lib in outcome.objects if lib.name == name)


def test_runpath_with_origin(tmp_path: Path) -> None:
    liba = library(tmp_path / "lib/liba.so")
    outcome = _same(program(tmp_path / "bin/prog", liba, *runpath("$ORIGIN/../lib")))
    assert _found_by(outcome, "liba.so") is FoundBy.RUNPATH
    assert outcome.ok


def test_rpath_is_inherited_by_what_the_library_needs(tmp_path: Path) -> None:
    libb = library(tmp_path / "b/libb.so")
    liba = library(tmp_path / "a/liba.so", libb)
    outcome = _same(program(tmp_path / "prog", liba, *rpath(tmp_path / "a", tmp_path / "b")))
    assert _found_by(outcome, "libb.so") is FoundBy.RPATH


def test_runpath_is_not_inherited(tmp_path: Path) -> None:
    libb = library(tmp_path / "b/libb.so")
    liba = library(tmp_path / "a/liba.so", libb)
    outcome = _same(program(tmp_path / "prog", liba, *runpath(tmp_path / "a", tmp_path / "b")))
    assert outcome.errors == ("libb.so: cannot open shared object file: No such file or directory",)
    assert outcome.missing[0].chain == (str(tmp_path / "prog"), "liba.so", "libb.so")
    assert outcome.closure["libb.so"] is None


def test_rpath_of_ancestors_is_ignored_for_a_library_with_runpath(tmp_path: Path) -> None:
    libb = library(tmp_path / "b/libb.so")
    liba = library(tmp_path / "a/liba.so", libb, *runpath(tmp_path / "none"))
    outcome = _same(program(tmp_path / "prog", liba, *rpath(tmp_path / "a", tmp_path / "b")))
    assert [lib.name for lib in outcome.missing] == ["libb.so"]


def test_ld_library_path_beats_runpath(tmp_path: Path) -> None:
    liba = library(tmp_path / "run/liba.so")
    library(tmp_path / "env/liba.so")
    outcome = _same(program(tmp_path / "prog", liba, *runpath(tmp_path / "run")), LD_LIBRARY_PATH=f"{tmp_path}/env")
    assert _found_by(outcome, "liba.so") is FoundBy.LD_LIBRARY_PATH


def test_rpath_beats_ld_library_path(tmp_path: Path) -> None:
    liba = library(tmp_path / "r/liba.so")
    library(tmp_path / "env/liba.so")
    outcome = _same(program(tmp_path / "prog", liba, *rpath(tmp_path / "r")), LD_LIBRARY_PATH=f"{tmp_path}/env")
    assert _found_by(outcome, "liba.so") is FoundBy.RPATH


def test_soname_of_a_loaded_library_serves_a_later_need(tmp_path: Path) -> None:
    odd = library(tmp_path / "libodd.so")
    plain = library(tmp_path / "x/libx.so.1")
    user = library(tmp_path / "libuser.so", plain, *runpath(tmp_path / "x"))
    prog = program(tmp_path / "prog", odd, user, *runpath(tmp_path))
    # linked as libodd.so, then replaced by a file of another soname, which a second library needs
    library(odd, "-Wl,-soname,libx.so.1")
    outcome = _same(prog)
    assert outcome.closure["libx.so.1"] == str(odd)


def test_subdirectory_for_the_level_of_the_cpu_is_tried_first(tmp_path: Path) -> None:
    liba = library(tmp_path / "liba.so")
    prog = program(tmp_path / "prog", liba, *runpath(tmp_path))
    best = library(tmp_path / "glibc-hwcaps/x86-64-v2/liba.so")
    with open_image(Path("/")) as image:
        none = Process(image.root, LoaderSettings(hwcaps=())).start(str(prog))
    assert none.closure["liba.so"] == str(liba)
    assert _same(prog).closure["liba.so"] == str(best)


def test_breadth_first_the_copy_of_the_sibling_is_used(tmp_path: Path) -> None:
    deep = library(tmp_path / "deep/libc1.so")
    library(tmp_path / "flat/libc1.so")
    liba = library(tmp_path / "flat/liba.so", deep, *runpath(tmp_path / "deep"))
    flat = tmp_path / "flat/libc1.so"
    outcome = _same(program(tmp_path / "prog", liba, flat, *runpath(tmp_path / "flat")))
    assert outcome.closure["libc1.so"] == str(flat)


def test_library_of_another_machine_is_passed_over(tmp_path: Path) -> None:
    good = library(tmp_path / "good/liba.so")
    other = bytearray(good.read_bytes())
    other[18:20] = (183).to_bytes(2, "little")
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm/liba.so").write_bytes(other)
    outcome = _same(program(tmp_path / "prog", good, *runpath(tmp_path / "arm", tmp_path / "good")))
    assert outcome.closure["liba.so"] == str(good)


def test_32_bit_library_is_passed_over_and_named_when_nothing_else_is_there(tmp_path: Path) -> None:
    good = library(tmp_path / "good/liba.so")
    other = bytearray(good.read_bytes())
    other[4] = 1
    (tmp_path / "small").mkdir()
    (tmp_path / "small/liba.so").write_bytes(other)
    prog = program(tmp_path / "prog", good, *runpath(tmp_path / "small", tmp_path / "good"))
    assert _same(prog).ok
    good.unlink()
    assert _model(prog, {}).errors == ("liba.so: wrong ELF class: ELFCLASS32",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"INPUT(libreal.so)\n" * 10, "invalid ELF header"),
        (b"", "file too short"),
        (b"\x7fELF", "file too short"),
    ],
    ids=["linker-script", "empty", "four-bytes"],
)
def test_file_that_is_no_library_is_fatal_where_it_is_found_first(tmp_path: Path, content: bytes, words: str) -> None:
    good = library(tmp_path / "good/liba.so")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/liba.so").write_bytes(content)
    prog = program(tmp_path / "prog", good, *runpath(tmp_path / "bad", tmp_path / "good"))
    _fatal(prog, f"{tmp_path}/bad/liba.so: {words}")


def test_directory_in_place_of_a_library_is_fatal(tmp_path: Path) -> None:
    good = library(tmp_path / "good/liba.so")
    (tmp_path / "bad/liba.so").mkdir(parents=True)
    prog = program(tmp_path / "prog", good, *runpath(tmp_path / "bad", tmp_path / "good"))
    _fatal(prog, "cannot read file data: Error 21")


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (5, 2, "ELF file data encoding not little-endian"),
        (6, 9, "ELF file version ident does not match current one"),
        (7, 77, "ELF file OS ABI invalid"),
        (8, 99, "ELF file ABI version invalid"),
        (12, 1, "nonzero padding in e_ident"),
        (20, 5, "ELF file version does not match current one"),
        (16, 1, "only ET_DYN and ET_EXEC can be loaded"),
        (54, 57, "ELF file's phentsize not the expected size"),
    ],
)
def test_header_field_that_the_loader_refuses(tmp_path: Path, offset: int, value: int, words: str) -> None:
    liba = library(tmp_path / "liba.so")
    prog = program(tmp_path / "prog", liba, *runpath(tmp_path))
    data = bytearray(liba.read_bytes())
    data[offset] = value
    liba.write_bytes(data)
    _fatal(prog, f"{liba}: {words}")


def test_symlink_loop_ends_the_list_and_the_search_goes_on(tmp_path: Path) -> None:
    good = library(tmp_path / "good/liba.so")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop/liba.so").symlink_to("liba.so")
    prog = program(tmp_path / "prog", good, *runpath(tmp_path / "good"))
    # in the list with the loop the good directory is never reached; RUNPATH is another list
    both = f"{tmp_path}/loop:{tmp_path}/good"
    outcome = _same(prog, LD_LIBRARY_PATH=both)
    assert _found_by(outcome, "liba.so") is FoundBy.RUNPATH
    assert [m.name for m in _same(program(tmp_path / "p2", good), LD_LIBRARY_PATH=both).missing] == ["liba.so"]


def test_lib_token_and_braces(tmp_path: Path) -> None:
    liba = library(tmp_path / "lib/x86_64-linux-gnu/liba.so")
    library(tmp_path / "lib64/liba.so")
    _same(program(tmp_path / "prog", liba, *runpath("$ORIGIN/${LIB}")))
    outcome = _same(program(tmp_path / "prog2", liba, *runpath("$ORIGIN/$LIBS")))
    assert outcome.missing


def test_needed_name_with_origin_and_slash_is_opened_without_a_search(tmp_path: Path) -> None:
    liba = library(tmp_path / "sub/liba.so", "-Wl,-soname,$ORIGIN/sub/liba.so")
    outcome = _model(program(tmp_path / "prog", liba), {})
    real = ask_loader(tmp_path / "prog")
    assert f"{tmp_path}/sub/liba.so" in real.printed.values()
    assert outcome.objects[1].path == f"{tmp_path}/sub/liba.so"
    assert outcome.objects[1].found_by is FoundBy.PATH


def test_preloaded_soname_wins(tmp_path: Path) -> None:
    liba = library(tmp_path / "run/liba.so")
    pre = library(tmp_path / "libpre.so", "-Wl,-soname,liba.so")
    outcome = _same(program(tmp_path / "prog", liba, *runpath(tmp_path / "run")), LD_PRELOAD=str(pre))
    assert outcome.closure["liba.so"] == str(pre)


def test_missing_preload_is_a_warning_in_the_loaders_words(tmp_path: Path) -> None:
    prog = program(tmp_path / "prog", library(tmp_path / "liba.so"), *runpath(tmp_path))
    real = ask_loader(prog, {"LD_PRELOAD": "libnowhere.so"})
    outcome = _model(prog, {"LD_PRELOAD": "libnowhere.so"})
    assert outcome.ok
    assert outcome.warnings[0] in real.errors


def test_origin_of_a_library_is_the_directory_as_it_was_opened(tmp_path: Path) -> None:
    libb = library(tmp_path / "real/libb.so")
    library(tmp_path / "sub/libb.so")
    liba = library(tmp_path / "real/liba.so", libb, *runpath("$ORIGIN/sub"))
    (tmp_path / "link").symlink_to("real")
    library(tmp_path / "real/sub/libb.so")
    outcome = _same(program(tmp_path / "prog", liba, *runpath(tmp_path / "link")))
    assert outcome.closure["libb.so"] == f"{tmp_path}/link/sub/libb.so"


def test_nodeflib_keeps_from_default_directories_and_their_cache_entries(tmp_path: Path) -> None:
    system = Path("/usr/lib/x86_64-linux-gnu/libz.so.1")
    if not system.exists():
        pytest.skip("libz is not installed")
    outcome = _same(program(tmp_path / "prog", system, "-Wl,-z,nodefaultlib"))
    assert [missing.name for missing in outcome.missing] == ["libz.so.1"]


def test_empty_element_of_ld_library_path_is_the_current_directory(tmp_path: Path) -> None:
    liba = library(tmp_path / "here/liba.so")
    prog = program(tmp_path / "prog", liba)
    outcome = _same(prog, cwd=tmp_path / "here", LD_LIBRARY_PATH="/nonexistent:")
    assert outcome.closure["liba.so"] == "liba.so"
    assert _same(prog, cwd=tmp_path / "here", LD_LIBRARY_PATH="").missing


def test_one_inode_under_two_names_is_loaded_once(tmp_path: Path) -> None:
    liba = library(tmp_path / "liba.so")
    libb = library(tmp_path / "libb.so")
    prog = program(tmp_path / "prog", liba, libb, *runpath(tmp_path))
    libb.unlink()
    os.link(liba, libb)
    outcome = _same(prog)
    assert outcome.closure["libb.so"] == str(liba)


def _versioned(path: Path, *versions: str, weak: str = "") -> Path:
    script = path.with_suffix(".map")
    path.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("".join(f"{name} {{ global: g_{name}; }};\n" for name in versions))
    source = "".join(f"int g_{name}(void) {{ return 0; }}\n" for name in versions)
    return library(path, f"-Wl,--version-script,{script}", *([weak] if weak else []), source=source)


_CALLS_V2 = "int g_V2(void); void start(void) { g_V2(); }"


def test_missing_version_has_the_loaders_words(tmp_path: Path) -> None:
    new = _versioned(tmp_path / "new/libv.so", "V1", "V2")
    _versioned(tmp_path / "old/libv.so", "V1")
    prog = program(tmp_path / "prog", new, *runpath(tmp_path / "old"), source=_CALLS_V2)
    outcome = _fatal(prog, f"{tmp_path}/old/libv.so: version `V2' not found (required by {prog})")
    assert outcome.missing_versions[0].version == "V2"
    assert _same(program(tmp_path / "p2", new, *runpath(tmp_path / "new"), source=_CALLS_V2)).ok


def test_missing_weak_version_is_a_warning(tmp_path: Path) -> None:
    new = _versioned(tmp_path / "new/libv.so", "V1", "V2")
    _versioned(tmp_path / "old/libv.so", "V1")
    prog = program(tmp_path / "prog", new, *runpath(tmp_path / "old"), source=_CALLS_V2)
    hash_flags_index = b"\x92\x05\0\0\0\0\2\0"  # Vernaux of V2; no linker option makes it weak
    data = prog.read_bytes()
    assert data.count(hash_flags_index) == 1
    prog.write_bytes(data.replace(hash_flags_index, b"\x92\x05\0\0\2\0\2\0"))
    outcome = _model(prog, {})
    assert outcome.ok
    assert outcome.warnings == (f"{tmp_path}/old/libv.so: weak version `V2' not found (required by {prog})",)
    assert outcome.warnings[0] in ask_loader(prog).errors


def test_library_without_versions_serves_every_version_with_a_warning(tmp_path: Path) -> None:
    new = _versioned(tmp_path / "new/libv.so", "V1", "V2")
    library(tmp_path / "plain/libv.so", source="int g_V2(void) { return 0; }")
    prog = program(tmp_path / "prog", new, *runpath(tmp_path / "plain"), source=_CALLS_V2)
    outcome = _model(prog, {})
    assert outcome.ok
    assert outcome.warnings[0] in ask_loader(prog).errors


def test_dlopen_uses_the_rules_of_the_caller_and_what_is_loaded(tmp_path: Path) -> None:
    shared = library(tmp_path / "main/libshared.so")
    library(tmp_path / "other/libshared.so")
    library(tmp_path / "plugins/libplugin.so", shared, *runpath(tmp_path / "other"))
    caller = library(tmp_path / "main/libcaller.so", *runpath(tmp_path / "plugins"))
    prog = program(tmp_path / "prog", caller, shared, *runpath(tmp_path / "main"))
    with open_image(Path("/")) as image:
        process = Process(image.root)
        process.start(str(prog))
        assert not process.dlopen("libplugin.so").ok  # the program's RUNPATH does not lead there
        outcome = process.dlopen("libplugin.so", process.find("libcaller.so"))
        assert outcome.ok
        assert outcome.closure["libshared.so"] == str(shared)
        assert [lib.name for lib in outcome.objects] == ["libplugin.so"]
        again = process.dlopen("libplugin.so")
        assert (again.ok, again.objects) == (True, ())


def test_dlopen_of_a_library_with_an_executable_stack_is_refused_since_2_41(tmp_path: Path) -> None:
    library(tmp_path / "libstack.so", "-Wl,-z,execstack", "-Wl,--no-warn-execstack")
    prog = program(tmp_path / "prog", library(tmp_path / "liba.so"), *runpath(tmp_path))
    with open_image(Path("/")) as image:
        process = Process(image.root)
        process.start(str(prog))
        minor = process.system.glibc_minor
        assert minor is not None
        outcome = process.dlopen(str(tmp_path / "libstack.so"))
    assert outcome.ok == (minor < 41)


def test_fifo_in_place_of_a_library_is_an_error(tmp_path: Path) -> None:
    good = library(tmp_path / "good/liba.so")
    (tmp_path / "bad").mkdir()
    os.mkfifo(tmp_path / "bad/liba.so")  # the real loader would not come back from this
    outcome = _model(program(tmp_path / "prog", good, *runpath(tmp_path / "bad", tmp_path / "good")), {})
    assert outcome.errors[0].startswith(f"{tmp_path}/bad/liba.so: no regular file")
