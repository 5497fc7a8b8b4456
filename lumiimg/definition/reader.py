"""Definitions are held against what the writer writes, line by line: those of an image, and those of a lock.

A definition can do more than describe an image. `%setup` and `%pre` run on the machine that builds it, however many `%`
they have and whatever their case (getSectionName in apptainer's pkg/build/types/parser); `%files` and a header read its
files; debootstrap runs on it. So nothing is looked for and refused: what is known is let through.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from lumiimg.catalog.layers import PACKAGE, SUITE
from lumiimg.definition.definition import (
    DEBOOTSTRAP,
    LAYER_LABEL,
    NOTE,
    POST,
    VERSION_LABEL,
    Definition,
    Header,
    Sections,
)
from lumiimg.definition.text import DefinitionError, quote_sh, trap
from lumiimg.errors import BadInputError
from lumiimg.fetch.mirrors import Mirrors, validated_url
from lumiimg.fetch.reference import parse_reference
from lumiimg.resolve.image_base import LOCAL_AGENTS

_REGISTRY_AGENTS = frozenset({"docker", "oras"})
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}")
_NOTE = re.compile(re.escape(NOTE).replace(r"\{\}", f"({_VERSION.pattern})"))
_SECTIONS = frozenset(("%files", "%environment", POST, "%test", "%labels"))
_TWO_WORDS = re.compile(r"    (\S+) (\S+)")
_EXPORT = re.compile(r"    export ([A-Za-z_][A-Za-z0-9_]*)=('.*)")
_MAX_PACKAGES = 1000


def read_sections(text: str, name: str) -> Sections:
    """Return the sections of a definition that lumiimg wrote; `name` is that of its file.

    Raises DefinitionError where the text is not, byte for byte, the rendering of its sections.
    """
    head, lines = _split(text, name)
    note = _NOTE.fullmatch(head[0]) if head else None
    if note is None:
        raise DefinitionError("does not begin as lumiimg begins it", where=f"{name}:1")
    if POST not in lines:
        raise DefinitionError(f"has no {POST}", where=name)
    sections = Sections(
        _read_header(head[1:], name),
        files=_pairs(_TWO_WORDS, lines, "%files", "copies other files than it names", name),
        environment=_pairs(_EXPORT, lines, "%environment", "does more in %environment than set variables", name),
        post=_script(lines[POST]),
        test=_script(lines.get("%test", ())),
        labels=_pairs(_TWO_WORDS, lines, "%labels", "has other labels than its place and its layer", name),
        version=note[1],
    )
    # order, ends and empty lines, too
    if sections.text != text:
        raise DefinitionError("is not as lumiimg writes it", where=name)
    return sections


def check_definition(definition: Definition) -> None:
    """Raise DefinitionError for a definition that the writer does not make of its layers, or that is read otherwise."""
    name, sections = f"{definition.name}.def", definition.sections
    if read_sections(definition.text, name) != sections:
        raise DefinitionError("is read as another definition than it is", where=name)
    for variable in sections.environment:
        if not _is_quoted(variable):
            raise DefinitionError("does more in %environment than set variables", where=name)
    if not _is_known(definition, sections.header):
        raise DefinitionError("has a header that lumiimg does not write there", where=name)
    if sections.files != tuple((file.path, file.target) for file in definition.files):
        raise DefinitionError("copies other files than it names", where=name)
    labels = list(sections.labels)
    first = int(name[:2]) if definition.parent else 1
    if first == 1 and labels and labels[0][0] == VERSION_LABEL and _VERSION.fullmatch(labels[0][1]):
        del labels[0]
    if labels != [(f"{LAYER_LABEL}{number:02}", layer) for number, layer in enumerate(definition.layers, first)]:
        raise DefinitionError("has other labels than its place and its layer", where=name)


def _is_quoted(variable: tuple[str, str]) -> bool:
    """Whether a value is one word as the writer quotes it, what the variable had before behind it or not."""
    name, word = variable
    text = word.removesuffix(f'"${{{name}:+:${name}}}"')
    try:
        return [quote_sh(value, name) for value in shlex.split(text)] == [text]
    except (ValueError, DefinitionError):  # a quote without end; a control character
        return False


def _read_header(lines: Sequence[str], name: str) -> Header:
    if not all(": " in line and line.isprintable() and "{{" not in line for line in lines):
        raise DefinitionError("has a header that lumiimg does not write there", where=name)
    found = dict(line.split(": ", 1) for line in lines)
    agent = found.get("Bootstrap", "")
    origin = found.get("OSVersion" if agent == DEBOOTSTRAP else "From", "")
    include = tuple(found["Include"].split(" ")) if "Include" in found else ()
    return Header(agent, origin, found.get("MirrorURL"), include)


def _pairs(
    pattern: re.Pattern[str], sections: Mapping[str, Sequence[str]], section: str, otherwise: str, name: str
) -> tuple[tuple[str, str], ...]:
    found = [pattern.fullmatch(line) for line in sections.get(section, ())]
    if not all(found):
        raise DefinitionError(otherwise, where=name)
    return tuple((match[1], match[2]) for match in found if match)


def _script(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _split(text: str, name: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines of the head, and those of each section, but for the last of each, which is to be empty."""
    sections: dict[str, list[str]] = {}
    head = body = list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{name}:{number}"
        if line.lstrip().startswith("%"):
            if line not in _SECTIONS or line in sections:
                raise DefinitionError(f"a section that lumiimg does not write here: {line.strip()[:40]!r}", where=where)
            body = sections[line] = []
            continue
        problem, _ = trap(line) if sections else ("", "")  # of the head only known lines are taken
        if problem:
            raise DefinitionError(problem, where=where)
        body.append(line)
    return head[:-1], {section: body[:-1] for section, body in sections.items()}


def _is_known(definition: Definition, header: Header) -> bool:
    """Return whether the writer starts such a definition with such a header."""
    if definition.parent is not None:
        is_below = header == Header("localimage", f"{definition.parent}.sif")
        return is_below and definition.origin is None and not definition.plain_http
    if header.agent == DEBOOTSTRAP:
        return (
            definition.origin is None
            and not definition.plain_http
            and SUITE.fullmatch(header.origin) is not None
            and header.mirror_url is not None
            and _is_as_read(header.mirror_url, lambda text: validated_url(text, "MirrorURL"))
            and len(header.include) <= _MAX_PACKAGES
            and all(map(PACKAGE.fullmatch, header.include))
        )
    if header.agent in LOCAL_AGENTS:
        return header.origin == str(definition.origin) and not definition.plain_http
    is_registry = header.agent in _REGISTRY_AGENTS and definition.origin is None
    return is_registry and _is_as_read(header.origin, lambda text: parse_reference(text, Mirrors({})))


def _is_as_read(text: str, read: Callable[[str], object]) -> bool:
    """Whether a text is what reading it would make of it."""
    try:
        return str(read(text)) == text
    except BadInputError:
        return False
