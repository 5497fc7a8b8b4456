"""The part of YAML that people write by hand: mappings and lists in blocks, `[a, b]` in a line, texts of one line.

All else is refused by its line: tags, anchors, `{…}`, texts of several lines, a second document. So nothing stands for
another part of the file, and a value has at most the size of the text. A text stays as it is: 3.10 does not become 3.1.
Source: YAML 1.1, as PyYAML reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from lumiimg.core.errors import BadInputError

_LIMIT_CHARS = 256 * 1024
_DEEPEST = 8
_LINE_END = re.compile(r"\r\n|\r|\n")
_MARK = re.compile(r"(?:---|\.\.\.)(?: .*)?|%.*")
_KEY = re.compile(r"([A-Za-z_][\w.-]*) *:(?: +(.*))?", re.ASCII)
_ITEM = re.compile(r"-(?: +(.*))?")
_COMMENT = re.compile(r"(?: +#.*)?")
_QUOTED = re.compile(r"'([^']*(?:''[^']*)*)'|\"([^\"\\]*)\"")
_PLAIN = re.compile(r"(?:(?! #).)*")
_PLAIN_IN_LIST = re.compile(r"(?:(?! #)[^,?\[\]{}])*")
_NOT_FOLLOWED = {
    "&": "an anchor",
    "*": "an alias",
    "!": "a tag",
    "|": "a text of several lines",
    ">": "a text of several lines",
    "{": "a mapping in braces",
    '"': "a text with a backslash, or that does not end",
    "'": "a text that does not end",
}


@dataclass(frozen=True, slots=True)
class YamlNode:
    """What stands at a place of a file."""

    line: int
    """That of its key, or where it has none, of its beginning; from 1 on."""
    value: str | tuple[YamlNode, ...] | Mapping[str, YamlNode] | None
    """None where nothing is."""


def parse_yaml(text: str, where: str) -> YamlNode:
    """Return what a text holds. Raises BadInputError, which names the line and repeats nothing of it."""
    return _Reader(text, where).whole()


class _Reader:
    """Goes through the lines that say something: number, column of the first character, and what they say."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        if len(text) > _LIMIT_CHARS:
            raise BadInputError(f"has more than {_LIMIT_CHARS} characters", where=where)
        self._lines = list[tuple[int, int, str]]()
        is_marked = False
        for number, line in enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1):
            if not line.isprintable():
                self._refuse(number, "a tab, or another character that is not printed,", "indent with blanks")
            content = line.strip(" ")
            if not content or content.startswith("#"):
                continue
            column = len(line) - len(line.lstrip(" "))
            if column or not _MARK.fullmatch(content):
                self._lines.append((number, column, content))
            elif content != "---" or self._lines or is_marked:
                self._refuse(number, "a directive, or a second document,")
            else:
                is_marked = True
        self._at = 0

    def whole(self) -> YamlNode:
        """Return what the lines hold."""
        if not self._lines:
            return YamlNode(1, None)
        node = self._node(0)
        if self._at < len(self._lines):
            self._refuse_place()
        return node

    def _refuse(self, line: int, what: str, hint: str = "write it as plain lists and texts") -> NoReturn:
        raise BadInputError(f"YAML: {what} is not followed", where=f"line {line} of {self._where}", hint=hint)

    def _refuse_place(self) -> NoReturn:
        self._refuse(self._lines[self._at][0], "its indentation, or a text of several lines,")

    def _column(self) -> int:
        """Return the column of the line that is next; -1 at the end."""
        return self._lines[self._at][1] if self._at < len(self._lines) else -1

    def _node(self, depth: int) -> YamlNode:
        """Return what begins at the next line."""
        number, column, text = self._lines[self._at]
        if depth > _DEEPEST:
            self._refuse(number, f"what is nested more than {_DEEPEST} deep")
        if _ITEM.fullmatch(text):
            return YamlNode(number, self._items(column, depth))
        if _KEY.fullmatch(text):
            return YamlNode(number, self._entries(column, depth))
        self._at += 1
        return self._in_line(text, number)

    def _items(self, column: int, depth: int) -> tuple[YamlNode, ...]:
        found = list[YamlNode]()
        while self._column() == column and (item := _ITEM.fullmatch(self._lines[self._at][2])):
            number, _, text = self._lines[self._at]
            if item[1] and not item[1].startswith("#"):  # what stands behind it is a line of its own
                self._lines[self._at] = number, column + len(text) - len(item[1]), item[1]
                found.append(self._node(depth + 1))
            else:
                self._at += 1
                found.append(self._below(number, column, depth))
        if self._column() > column:
            self._refuse_place()
        return tuple(found)

    def _entries(self, column: int, depth: int) -> dict[str, YamlNode]:
        found = dict[str, YamlNode]()
        while self._column() == column and (entry := _KEY.fullmatch(self._lines[self._at][2])):
            number = self._lines[self._at][0]
            if entry[1] in found:
                self._refuse(number, "a key that is there twice")
            self._at += 1
            if entry[2] and not entry[2].startswith("#"):
                found[entry[1]] = self._in_line(entry[2], number)
            else:
                found[entry[1]] = self._below(number, column, depth, of_key=True)
        if self._column() > column:
            self._refuse_place()
        return found

    def _below(self, number: int, column: int, depth: int, *, of_key: bool = False) -> YamlNode:
        """Return what is indented more than the line before; the list of a key need not be."""
        here = self._column()
        if here > column or (of_key and here == column and _ITEM.fullmatch(self._lines[self._at][2])):
            return replace(self._node(depth + 1), line=number)
        return YamlNode(number, None)

    def _in_line(self, text: str, number: int) -> YamlNode:
        """Return what stands in the rest of a line: a text, or a list of texts in brackets."""
        if not text.startswith("["):
            found, end = self._text(text, 0, number, _PLAIN)
            value: str | tuple[YamlNode, ...] = found
        else:
            items, end = list[YamlNode](), 1
            while True:
                end += len(text[end:]) - len(text[end:].lstrip(" "))
                if text[end : end + 1] == "]":
                    break
                found, end = self._text(text, end, number, _PLAIN_IN_LIST)
                items.append(YamlNode(number, found))
                end += len(text[end:]) - len(text[end:].lstrip(" "))
                if text[end : end + 1] == ",":
                    end += 1
                elif text[end : end + 1] != "]":
                    self._refuse(number, "a list in brackets that does not end in its line, or has more than texts,")
            value, end = tuple(items), end + 1
        if not _COMMENT.fullmatch(text, end):
            self._refuse(number, "what stands behind the end of a text, or of a list,")
        return YamlNode(number, value)

    def _text(self, text: str, at: int, number: int, plain: re.Pattern[str]) -> tuple[str, int]:
        """Return the text that begins there, and where it ends."""
        if quoted := _QUOTED.match(text, at):
            found = quoted[2] if quoted[1] is None else quoted[1].replace("''", "'")
            return found, quoted.end()
        if what := _NOT_FOLLOWED.get(text[at : at + 1]):
            self._refuse(number, what)
        match = plain.match(text, at)
        found = match[0].rstrip(" ") if match else ""
        if not found or found[0] in "%@`}],?:#" or _ITEM.fullmatch(found) or re.search(r":(?: |$)", found):
            self._refuse(number, "a text that begins so, or with a colon and a blank in it,", "put it in quotes")
        return found, at + len(found)
