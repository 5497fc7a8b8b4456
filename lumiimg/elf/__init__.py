"""The facts in an ELF file, and what glibc's dynamic loader would do with it in a root file system.

process = Process(fs, LoaderConfig(library_path="/opt/lib"))
result = process.start("/usr/bin/python3")
print(result.closure, result.errors)
"""

from lumiimg.elf.binding import (
    definer_of,
    dlsym,
    find_interposer,
    find_undefined,
    glibc_mismatch,
    is_glibc_part,
    reference_of,
)
from lumiimg.elf.facts import ElfFacts, SnapshotElf, read_abi, read_elf
from lumiimg.elf.glibc import (
    LoaderConfig,
    abi_at,
    c_library_of,
    cpu_levels,
    exported_at,
    facts_at,
    glibc_version,
    wanted_at,
)
from lumiimg.elf.ld_cache import CACHE_PATH
from lumiimg.elf.loader import PRELOAD_FILE, Process
from lumiimg.elf.objects import FoundBy, LoadedObject, LoadResult, MissingLibrary, MissingVersion, duplicate_libraries
from lumiimg.elf.search import ElfCache
from lumiimg.elf.segments import ElfError, Segments
from lumiimg.elf.symbols import exported_symbols

__all__ = [
    "CACHE_PATH",
    "PRELOAD_FILE",
    "ElfCache",
    "ElfError",
    "ElfFacts",
    "FoundBy",
    "LoadResult",
    "LoadedObject",
    "LoaderConfig",
    "MissingLibrary",
    "MissingVersion",
    "Process",
    "Segments",
    "SnapshotElf",
    "abi_at",
    "c_library_of",
    "cpu_levels",
    "definer_of",
    "dlsym",
    "duplicate_libraries",
    "exported_at",
    "exported_symbols",
    "facts_at",
    "find_interposer",
    "find_undefined",
    "glibc_mismatch",
    "glibc_version",
    "is_glibc_part",
    "read_abi",
    "read_elf",
    "reference_of",
    "wanted_at",
]
