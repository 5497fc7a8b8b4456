"""YAML as people write it by hand: mappings, lists and strings. PyYAML reads it; anything else is refused.

A value is at most as large as the text: an alias stands for another part of the file, and is refused with its anchor.
A string stays unchanged: 3.10 does not become 3.1 (BaseLoader has no types).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import yaml

from lumiimg.core.errors import BadInputError

_LIMIT_CHARS = 64 * 1024
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value at one place of a file."""

    line: int
    """Line of its key, or where it has none, of its beginning; counted from 1."""
    value: str | tuple[YamlNode, ...] | Mapping[str, YamlNode] | None
    """The value; None where it is empty."""


def parse_yaml(text: str, where: str) -> YamlNode:
    """Return the value in a text. Raises BadInputError, which names the line but does not quote it."""
    if len(text) > _LIMIT_CHARS:
        raise BadInputError(f"has more than {_LIMIT_CHARS} characters", where=where)
    try:
        _require_plain(text, where)
        node = yaml.compose(text, yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(mark.line if mark else 0, where, f"not YAML: {error.problem}")
    except yaml.YAMLError:  # an error of the reader, which has no line
        raise BadInputError("not YAML: it has unprintable characters", where=where) from None
    return YamlNode(1, None) if node is None else _plain(node, node.start_mark.line, where)


def _refuse(line: int, where: str, what: str) -> NoReturn:
    raise BadInputError(what, where=f"line {line + 1} of {where}", hint="write it as plain lists and texts")


def _require_plain(text: str, where: str) -> None:
    """Refuse tags, anchors and deep nesting before anything is composed."""
    depth = 0
    for event in yaml.parse(text, yaml.BaseLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            depth += isinstance(event, yaml.CollectionStartEvent)
            if event.anchor is not None or getattr(event, "tag", None) is not None:
                _refuse(event.start_mark.line, where, "YAML: tags, anchors and aliases are not supported")
            if depth > _MAX_DEPTH:
                _refuse(event.start_mark.line, where, f"YAML: nesting deeper than {_MAX_DEPTH} is not supported")


def _plain(node: yaml.Node, line: int, where: str) -> YamlNode:
    """Return a node with its contents; keys must be strings, each of them used once."""
    if isinstance(node, yaml.SequenceNode):
        return YamlNode(line + 1, tuple(_plain(each, each.start_mark.line, where) for each in node.value))
    if isinstance(node, yaml.ScalarNode):
        if not node.value.isprintable():
            _refuse(line, where, "YAML: text with several lines or a tab is not supported")
        return YamlNode(line + 1, node.value or (None if node.style is None else ""))
    entries = dict[str, YamlNode]()
    for key, value in node.value:
        name, at = key.value, key.start_mark.line
        if not isinstance(name, str) or name in entries:
            _refuse(at, where, "YAML: a repeated key, or one that is not text, is not supported")
        entries[name] = _plain(value, at, where)
    return YamlNode(line + 1, entries)
