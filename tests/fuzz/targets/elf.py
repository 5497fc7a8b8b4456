"""Of `elf/`, and what else is read out of libraries."""

from __future__ import annotations

import contextlib

from lumiimg.core.access import BytesInMemory
from lumiimg.elf import ElfError, LoaderConfig, Process, exported_symbols, glibc_version, read_abi, read_elf
from lumiimg.elf.ld_cache import parse_cache
from lumiimg.elf.symbols import defined_symbols, undefined_symbols
from lumiimg.host.ldd import Libraries
from lumiimg.report.text import show
from lumiimg.report.views.ldd import ldd_document
from tests.fuzz.target import target
from tests.fuzz.targets.scratch import parts, printed, text_of
from tests.shared.memory_root import MemoryRoot

_LOADER = "/lib64/ld-linux-x86-64.so.2"


@target(
    "elf-facts",
    "elf.facts.read_elf",
    "elf.facts.read_abi",
    "elf.segments.Segments",
    "elf.facts.Dynamic",
    "elf.symbols.exported_symbols",
    "elf.symbols.undefined_symbols",
    "elf.symbols.defined_symbols",
    refuses=(ElfError,),
    form="bytes",
    rounds=120,
)
def _facts(data: bytes) -> None:
    read_abi(BytesInMemory(data))
    with contextlib.suppress(ElfError):
        read_elf(BytesInMemory(data))
    exported_symbols(BytesInMemory(data), "ncclNet")
    wanted = undefined_symbols(BytesInMemory(data)) | undefined_symbols(BytesInMemory(data), lazily=True)
    defined_symbols(BytesInMemory(data), wanted)


@target("ld-so-cache", "elf.ld_cache.parse_cache", refuses=(ElfError,), form="bytes")
def _cache(data: bytes) -> None:
    cache = parse_cache(data)
    if cache is None:
        return
    for name in ("libc.so.6", "liba.so.10", "libz.so.1", "", "\udcff", "9" * 400):
        cache.lookup(name, levels=("x86-64-v3", "x86-64-v2"))
        cache.lookup(name, machine=183)


@target(
    "elf-process",
    "elf.loader.Process",
    "elf.glibc.glibc_version",
    "elf.search.SearchRules",
    refuses=(),
    form="bytes",
    rounds=10,
)
def _process(data: bytes) -> str:
    """A program, its libraries, the loader and its cache: what `ldd` says of them."""
    program, one, two, loader, cache, path = parts(data, 6)
    files = {"/prog": program, "/lib/liba.so": one, "/usr/lib/libb.so": two, _LOADER: loader, "/etc/ld.so.cache": cache}
    root = MemoryRoot({name: content for name, content in files.items() if content})
    glibc_version(root)
    process = Process(root, LoaderConfig(library_path=text_of(path), preload=("libb.so",)))
    outcome = process.start("/prog")
    assert outcome.ok == (not outcome.errors)
    if outcome.ok and process.objects[0].facts.is_dynamic:
        process.dlopen("liba.so")
    return printed(show, ldd_document("image", Libraries({"/prog": outcome}, {"/prog": outcome}, "", ())), verbose=True)
