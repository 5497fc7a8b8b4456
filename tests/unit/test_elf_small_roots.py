"""Small roots: what the real loader finds in one under chroot, the model must find, too.

The loader of this machine is copied into each; the real ldconfig writes their caches.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lumiimg.elf import FoundBy, LoaderConfig, LoadResult, Process
from lumiimg.image import open_image
from tests.shared.elf_builder import (
    LOADER,
    Trace,
    assert_same,
    exe,
    patched,
    read_trace,
    runpath,
    settings_here,
    so,
)
from tests.shared.programs import needs, sampled

_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_AS_ROOT = () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a loader and no library."""
    needs("unshare")
    if not Path(LOADER).exists():
        needs(LOADER)
    if _AS_ROOT and subprocess.run([*_AS_ROOT, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    folder = tmp_path / "root"
    for name in ("lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "etc", "opt/a", "opt/b"):
        (folder / name).mkdir(parents=True)
    shutil.copy(LOADER, folder / "lib64")
    return folder


def ldconfig(root: Path, *directories: str, form: str = "new") -> None:
    program = shutil.which("ldconfig", path=_SBIN)
    if program is None:
        needs("ldconfig")
    (root / "etc/ld.so.conf").write_text("".join(f"{directory}\n" for directory in directories))
    subprocess.run([*_AS_ROOT, str(program), "-c", form, "-r", root], check=True, capture_output=True)


def ask(root: Path, program: str, library_path: str | None = None) -> Trace:
    options = ["--library-path", library_path] if library_path is not None else []
    chroot = str(shutil.which("chroot", path=_SBIN))
    done = subprocess.run(
        [*_AS_ROOT, chroot, root, LOADER, "--list", *options, program],
        capture_output=True,
        check=False,
        env={"PATH": _SBIN, "LC_ALL": "C"},
    )
    return read_trace(program, os.fsdecode(done.stdout), os.fsdecode(done.stderr))


def same(root: Path, program: str, library_path: str | None = None) -> LoadResult:
    environment = {"LD_LIBRARY_PATH": library_path} if library_path is not None else {}
    with open_image(root) as image:
        outcome = Process(image.root, settings_here(environment, Path("/"))).start(program)
    assert_same(outcome, ask(root, program, library_path))
    return outcome


def test_directory_that_only_the_cache_knows(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"))
    ldconfig(root, "/opt/a")
    (root / "etc/ld.so.conf").unlink()
    assert same(root, "/prog").objects[1].found_by is FoundBy.CACHE
    ldconfig(root)
    (root / "etc/ld.so.conf").write_text("/opt/a\n")
    assert same(root, "/prog").missing


def test_links_and_dots_stay_in_the_root(root: Path) -> None:
    libraries = [so(root / f"opt/a/lib{name}.so") for name in ("dots", "link", "circle", "behind")]
    exe(root / "prog", *libraries, *runpath("/opt/b", "/opt/c", "/../../../../../../opt/b/../dots"))
    (root / "opt/dots").mkdir()
    (root / "opt/b/liblink.so").symlink_to("/opt/a/liblink.so")
    (root / "opt/b/libcircle.so").symlink_to("libother.so")
    (root / "opt/b/libother.so").symlink_to("libcircle.so")
    (root / "opt/c").symlink_to("/opt/e")
    (root / "opt/a/libdots.so").rename(root / "opt/dots/libdots.so")
    (root / "opt/e").mkdir()
    (root / "opt/a/libbehind.so").rename(root / "opt/e/libbehind.so")
    outcome = same(root, "/prog")
    assert [each.path.rpartition("/")[0] for each in outcome.objects[1:4]] == [
        "/../../../../../../opt/b/../dots",
        "/opt/b",
        "/opt/c",
    ]
    assert [missing.name for missing in outcome.missing] == ["libcircle.so"]


def test_default_directories_in_their_order(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"))
    for directory in ("usr/lib", "lib", "usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"):
        so(root / directory / "liba.so")
        assert same(root, "/prog").objects[1].path == f"/{directory}/liba.so"


def test_levels_of_the_cpu_in_the_cache(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"))
    chosen = []
    for level in ("x86-64-v9", "x86-64-v2", "x86-64-v3", "x86-64-v4"):
        so(root / f"opt/a/glibc-hwcaps/{level}/liba.so")
        ldconfig(root, "/opt/a")
        chosen.append(same(root, "/prog").objects[1].path)
    assert chosen[0] == "/opt/a/liba.so"
    with open_image(root) as image:
        for levels, path in (((), "/opt/a/liba.so"), (("x86-64-v2",), "/opt/a/glibc-hwcaps/x86-64-v2/liba.so")):
            assert Process(image.root, LoaderConfig(hwcaps=levels)).start("/prog").objects[1].path == path


def test_file_of_the_cache_that_is_gone_or_another_one(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"))
    so(root / "opt/b/liba.so")
    ldconfig(root, "/opt/a", "/opt/b")
    (root / "opt/a/liba.so").unlink()
    assert same(root, "/prog").missing
    (root / "opt/a/liba.so").write_text("text " * 99)
    assert not same(root, "/prog").ok
    patched(so(root / "opt/a/liba.so"), 18, b"\xb7")
    assert same(root, "/prog").missing
    (root / "opt/a/liba.so").unlink()
    so(root / "usr/lib/liba.so")
    assert same(root, "/prog").objects[1].found_by is FoundBy.DEFAULT


def test_the_old_part_of_a_cache_is_skipped_and_not_read_alone(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"))
    ldconfig(root, "/opt/a", form="compat")
    cache = root / "etc/ld.so.cache"
    assert cache.read_bytes().startswith(b"ld.so-1.7.0")
    assert same(root, "/prog").objects[1].found_by is FoundBy.CACHE
    cache.write_bytes(cache.read_bytes().partition(b"glibc-ld.so.cache1.1")[0])
    with open_image(root) as image:
        (doubt,) = Process(image.root).start("/prog").warnings
    assert "the loader may find libraries in it, but lumiimg does not read it" in doubt


def test_names_with_numbers(root: Path) -> None:
    libs = [so(root / f"opt/a/liba.so.{n}") for n in ("1", "2", "9", "10", "1.2", "1.10")]
    exe(root / "prog", *libs)
    ldconfig(root, "/opt/a")
    assert same(root, "/prog").ok


def test_cache_that_is_cut_off_or_has_one_byte_changed(root: Path) -> None:
    exe(root / "prog", so(root / "opt/a/liba.so"), so(root / "opt/a/libb.so"))
    ldconfig(root, "/opt/a")
    cache = root / "etc/ld.so.cache"
    whole = cache.read_bytes()
    for size in (0, 10, 20, 47, 48, 49, 90):
        cache.write_bytes(whole[:size])
        assert same(root, "/prog").missing, size
    for at in sampled([*range(24, 32), *range(48, 52), *range(56, 72)], 16):
        cache.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        outcome = same(root, "/prog")
        assert outcome.ok == (not ask(root, "/prog").is_fatal), at
