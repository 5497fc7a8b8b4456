"""A definition as Apptainer reads it: its header, and each section as one text.

Source: apptainer 1.4.5, `pkg/build/types/parser/deffile.go`. What lumiimg writes is read; several stages, arguments of
a build and apps are not among it (reader.py refuses them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lumiimg.definition.text import DefinitionError

_STAGE = re.compile(r"^bootstrap:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineSection:
    """The text below a line that begins with `%`, and what is behind the name in that line."""

    text: str = ""
    arguments: str = ""

    @property
    def script(self) -> str:
        """What Apptainer writes for it: the interpreter that its first line names, or the arguments, and the rest."""
        shebang, text = "#!/bin/sh", self.text
        if text.lstrip().startswith("#!"):
            first, _, text = text.partition("\n")
            shebang = first.strip()
        if self.arguments:
            shebang += f" {self.arguments.partition('#')[0]}"
        return f"{shebang}\n\n{text}\n"


@dataclass(frozen=True, slots=True)
class EngineDefinition:
    """What an engine builds."""

    text: str
    """As it is kept in the image: from `Bootstrap` on."""
    header: Mapping[str, str]
    """By keyword, in small letters."""
    sections: Mapping[str, EngineSection]
    """By name; those without any text are none."""


def read_definition(text: str) -> EngineDefinition:
    """Return what an engine makes of a definition. Raises DefinitionError for one without `Bootstrap`."""
    start = _STAGE.search(text)
    if start is None:
        raise DefinitionError("has no Bootstrap")
    text = text[start.start() :]
    header: dict[str, str] = {}
    sections: dict[str, EngineSection] = {}
    name = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.lstrip().startswith("%"):
            name, _, arguments = line.lstrip("%").partition(" ")
            name = name.lower()
            known = sections.get(name, EngineSection())
            sections[name] = EngineSection(known.text, arguments or known.arguments)
        elif name:
            known = sections[name]
            sections[name] = EngineSection(f"{known.text}{line}\n", known.arguments)
        elif keyword := line.partition("#")[0].strip():
            key, _, value = keyword.partition(":")
            header[key.strip().lower()] = value.strip()
    return EngineDefinition(text, header, {name: section for name, section in sections.items() if section.text})


def read_labels(text: str) -> dict[str, str]:
    """Return what the lines of `%labels` say: a name each, and a value behind it."""
    lines = [line.strip() for line in text.split("\n")]
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
