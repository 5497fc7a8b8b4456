"""Comparisons of the loader model with the real loader, and of the ELF reader with pyelftools."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from lumiimg.core.access import BytesInMemory
from lumiimg.elf import Process, exported_symbols, read_elf
from lumiimg.image import open_image
from tests.shared.elf_builder import assert_same, settings_here, trace


class Ask(NamedTuple):
    """A program and the environment to load it in."""

    program: Path
    environment: dict[str, str] = {}  # noqa: RUF012 - never changed
    cwd: Path | None = None


def compare(ask: Ask) -> None:
    """Assert that the loader model and the real loader agree."""
    with open_image(Path("/")) as image:
        outcome = Process(image.root, settings_here(ask.environment, ask.cwd)).start(str(ask.program))
    assert_same(outcome, trace(ask.program, ask.environment, cwd=ask.cwd))


def assert_facts_of_pyelftools(content: bytes) -> None:
    facts = read_elf(BytesInMemory(content))
    with io.BytesIO(content) as file:
        elf: Any = ELFFile(file)
        segments = list(elf.iter_segments())
        assert facts.type == {"ET_EXEC": 2, "ET_DYN": 3, "ET_REL": 1}[elf["e_type"]]
        tags: list[Any] = [tag for s in segments if isinstance(s, DynamicSegment) for tag in s.iter_tags()]
        assert facts.needed == tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED")
        for name, value in (("SONAME", facts.soname), ("RPATH", facts.rpath), ("RUNPATH", facts.runpath)):
            assert [getattr(tag, name.lower()) for tag in tags if tag.entry.d_tag == f"DT_{name}"] == (
                [value] if value is not None else []
            )
        interpreters = [s.get_interp_name() for s in segments if s["p_type"] == "PT_INTERP"]
        assert interpreters == ([facts.interpreter] if facts.interpreter else [])
        needs_section = elf.get_section_by_name(".gnu.version_r")
        expected = (
            [(v.name, a.name, bool(a["vna_flags"] & 2)) for v, each in needs_section.iter_versions() for a in each]
            if needs_section
            else []
        )
        assert [(need.file, need.name, need.weak) for need in facts.version_needs] == expected
        definitions = elf.get_section_by_name(".gnu.version_d")
        assert list(facts.version_definitions) == (
            [next(iter(aux)).name for _, aux in definitions.iter_versions()] if definitions else []
        )
        build_ids = [
            note["n_desc"]
            for s in segments
            if s["p_type"] == "PT_NOTE"
            for note in s.iter_notes()
            if note["n_type"] == "NT_GNU_BUILD_ID"
        ]
        assert facts.build_id == (build_ids[0] if build_ids else None)
        symbols = elf.get_section_by_name(".dynsym")
        of_symbols = elf.get_section_by_name(".gnu.version")
        names = {
            symbol.name
            for number, symbol in enumerate(symbols.iter_symbols() if symbols else ())
            if not (of_symbols and _is_hidden(of_symbols.get_symbol(number)["ndx"]))
            and symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
            and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        }
        assert exported_symbols(BytesInMemory(content)) == names


def _is_hidden(index: int | str) -> bool:
    """Return whether an entry of .gnu.version is `name@VERSION`, which is found only by references to that version."""
    return isinstance(index, int) and index > 0x8001
