r"""Split a line of a job log into its messages, each with the process that wrote it.

NCCL and RCCL print `host:pid:tid [device] [file:line] NCCL LEVEL text` (src/debug.cc), at the start of a line or
after the prefix of a known launcher (prefixes.toml; learned.py has already removed unknown prefixes); anywhere else,
such a text is a quotation. A text line may contain several messages. Level and file:line are ignored: they differ by
build, and ROCm 7.2 prints the plugin's INFO as WARN and its WARN without any prefix.
oneCCL prints `time:(tid) |CCL_LEVEL| text` (src/common/log) without a host: only a launcher's prefix can name one.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import NamedTuple
from urllib.parse import unquote

from lumiimg.core.errors import one_line
from lumiimg.core.redact import redact
from lumiimg.core.toml import package_toml

LINE_LIMIT = 16_384
"""Maximum number of characters read per line, or per part that a progress bar has drawn.

NCCL's own buffer is 4,096; the rest leaves room for lines that were joined."""
EVIDENCE_LIMIT = 400
"""Maximum number of characters of a message shown as evidence."""
PROBE = "@probe "
"""Prefix of each line that lumiimg's own probes print."""
_CUT = "…"
"""Marks an omission in an excerpt."""
_MAX_PREFIXES = 8
"""Maximum number of consecutive prefixes: container, launcher, framework, time."""

_COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]")
"""ANSI sequences."""
_COPIED_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""ANSI sequences that lost their escape character when copied from a terminal."""
_ORIGIN = re.compile(r"(?<![\w.\-])(?!-|\d{1,2}:)([\w.\-]{1,255}:\d{1,10}):\d{1,10} (?:\[-?\d{1,11}\]|NCCL )")
"""`host:pid:tid [device]`. A host of one or two digits would be an hour; a leading `-` comes from diff(1)."""
_ANOTHER = re.compile(r":\d{1,10} (?:\[-?\d|NCCL )")
"""The end of an origin: a cheap test for a second origin, which is rare."""
_LEVEL = re.compile(
    r"[ \t]{0,2}(?![-+])(?:(?:(?:[\w.-]{1,64}|[^\s'`({\[\x22]{1,255}:\d{1,10}:\d{1,10}) )?\[-?\d{1,11}\] )?"
    r"(?:(?:[\w./+-]{1,300}|(?:\w|::|[~<>*&, ]){1,200}\([^\r\n\"'`]{0,200}\)[\w ]{0,20}):\d{1,6} {1,2}"
    r"(?:\(\w{1,80}\) )?)?NCCL (?:INFO|WARN|TRACE|CALL|VERSION|ABORT|NONE) "
)
"""What NCCL prints after the origin; people leave it in place when they remove the origin.

The place is a file (from 2.27 on with a function), or a function with its types. Words before it mean a quotation."""
_ONECCL = "|CCL_"
_ONECCL_ORIGIN = re.compile(r"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:(?:\( {0,9}(\d{1,10})\)|(\d{1,10})) (?=\|CCL_)")
"""A time and a thread id, in parentheses up to 2021.16. What it says about the network comes from the main thread,
whose id is the pid."""
_PALS = re.compile(r"[>\s]{0,8}([A-Za-z][\w.\-]{0,254}) \d{1,7}: $")
"""`mpiexec -l` of PALS, as on Aurora: host and task."""
_TASK = re.compile(
    r"\s*(?:(\d{1,7}): |\[(?:[\w.@-]{1,112},(?:mpirank:)?)?(\d{1,7})(?:,[\w.-]{1,64})?\](?:\[[\w.:-]{1,80}\])?"
    r"<std(?:out|err)>:)"
)
"""`srun -l` and Open MPI's --tag-output: the task that wrote the line."""
_PROBE_RANK = re.compile(r"\bprobe \w{1,40} (?:rc=\d{1,5} )?rank=(\d{1,7})\b")
"""The rank that wrote a line, as lumiimg's own programs print it."""
_JOINED = re.compile(r"(?<=[\d.%━█…])[ \t]{0,4}(?=(?:srun|slurmstepd): error: |Memory access fault by GPU )")
"""Where another program's message follows text without a line end: a number, dots, a progress bar."""
_COPIED = re.compile(
    r"(?!\*\*\* (?:SIG[A-Z]{3,4} received|Error in `|An error occurred in |MPI_))"
    r"(?:[ \t>#*|•`-]|//|\+(?![ +])){0,16}+(?:[\w./+-]{1,200}\.(?:out|err|log|txt)[:-](?:\d{1,9}[:-])?)?+"
)
"""What precedes a line that somebody copied: Markdown or comment marks, or the file name that grep prints.

The asterisks of glibc, Open MPI and Abseil are excluded."""
_INDENTS = frozenset({"", " ", "  ", "\t"})
"""Indentation that programs use for their own lines."""
_QUOTED = re.compile(r"\s{0,8}(?:\d{1,7}: )? {4}> .{1,1024}?:\d{1,12}: ")
"""A quotation in a report on a log, perhaps another log: a job script may analyse the log of the previous run."""
_EVENT = re.compile(r"@probe (\w+)((?: \w+=[^ ]*)*)\s*$")
_NET = r"(?:\t| {0,2}+)(?:\[Rank \d{1,7}\] )?(?:\w{0,8}(?:NET|ncclComm)[\w/]{1,40}(?: Libfabric)? ?:? )?"
_CHANNEL = r"(?:Channel \d{1,4}(?:/\d{1,4})? ?: \d{1,7}\[\w{1,10}\] (?:-> \d{1,7}\[\w{1,10})?)?"
_OTHERS_SHARE = 100
"""One other line is allowed per this number of records: a truncated record, or a header of tail(1) between files."""


TABLE_WORDS: tuple[bytes, ...] = (
    b"busbw",
    b"Avg bus bandwidth",
    b"Out of bounds values",
    b"Collective test starting",
    b"# nThread",
    b"# Using devices",
)
"""Words in benchmark tables (bandwidth.py): without any of them, no table begins or ends."""


class Message(NamedTuple):
    """One message of a line."""

    process: str | None
    """`host:pid`; None if the message has no such prefix."""
    task: str | None
    """Task number from srun -l or Open MPI."""
    text: str
    start: int = 0
    """Where it begins in `text`, after the prefixes of the launcher and the library."""
    signed: bool = False
    """Whether a library's own prefix precedes it, so that all of it was written by this library."""
    has_origin: bool = False
    """Whether it names the process or thread that wrote it. If not, it may be an excerpt, and alone proves nothing."""


class Prefixes(NamedTuple):
    """What may precede a message in a line: patterns that each match a sequence of prefixes."""

    launcher: re.Pattern[str]
    """Prefixes of launchers, which may precede any line."""
    library: re.Pattern[str]
    """The prefix of a library that prints no `host:pid:tid`."""
    bare: re.Pattern[str]
    """What remains before a message of a collective library if its origin was removed."""
    program: re.Pattern[str]
    """Prefixes of an error of any program."""
    warning: re.Pattern[str]
    """Marks a prefix as that of a message below the level of an error."""
    records: tuple[tuple[str, frozenset[str]], ...]
    """Keys of the message in JSON logs, each with the keys of which its collector adds at least one."""


@cache
def prefixes() -> Prefixes:
    """Return the knowledge base prefixes.toml; its tests find mistakes in it."""
    data = package_toml(__package__, "prefixes.toml")
    launcher, library, program = (
        "|".join(table["pattern"] for table in data[kind]) for kind in ("launcher", "library", "program")
    )
    return Prefixes(
        launcher=re.compile(f"(?:{launcher}){{0,{_MAX_PREFIXES}}}+"),
        library=re.compile(library),
        bare=re.compile(_NET + _CHANNEL),
        program=re.compile(rf"(?:\t| {{0,2}}+)(?:{program}|{launcher}){{0,{_MAX_PREFIXES}}}+(?:/[\w./+-]{{0,300}}/)?"),
        warning=re.compile(data["warning"]["pattern"]),
        records=tuple((table["text"], frozenset(table["beside"])) for table in data["record"]),
    )


def end_of(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Return where the prefixes at `start` end."""
    found = pattern.match(text, start)
    return found.end() if found else start


def messages(line: bytes) -> list[Message]:
    """Return the messages of a line, without colours and truncated to the limit; never raises.

    Text after marks that people put before copied lines belongs to another job.

    A progress bar returns to the start of its line (CR), so its drawings precede a message within one line. A line of
    lumiimg's own probe is replaced by what it quotes; a line quoted in a report on a log does not belong to this job.
    """
    drawn = line.split(b"\r") if b"\r" in line else [line]
    texts = [
        text for part in drawn if part and not _QUOTED.match(whole := plain(part)) for text in _split_joined(whole)
    ]
    if not texts:
        return []
    if len(texts) == 1 and (origin := _ORIGIN.match(texts[0])) and not _ANOTHER.search(texts[0], origin.end()):
        # fast path for most lines of a job
        return [Message(origin[1], None, texts[0], signed=True, has_origin=True)]
    tag = _TASK.match(texts[0]) or _PROBE_RANK.search(texts[0])
    task = tag[tag.lastindex or 0] if tag else None
    return [message for text in texts for message in _joined(text, task)]


def _split_joined(text: str) -> list[str]:
    """Split a text where another program's message follows without a line end; a search for two words is cheaper."""
    return _JOINED.split(text) if ": error: " in text or "Memory access" in text else [text]


def _joined(text: str, task: str | None) -> list[Message]:
    """Return the messages of a text: a library's begin after the launcher's prefix, and more may be joined to them."""
    begin = end_of(prefixes().launcher, text)
    if found := _signed(text, task, begin):
        return found
    copied = _COPIED.match(text)
    if copied is not None and copied.end() > begin and text[begin : copied.end()] not in _INDENTS:
        return []
    level = _LEVEL.match(text, begin)
    return [Message(None, task, text, level.end() if level else begin)]


def _signed(text: str, task: str | None, begin: int) -> list[Message]:
    """Return the messages, the first with its library's prefix at `begin`; none if there is no such prefix."""
    if first := _ORIGIN.match(text, begin):
        more = list(_ORIGIN.finditer(text, first.end())) if _ANOTHER.search(text, first.end()) else []
        origins = [(one, one[1], one.start()) for one in (first, *more)]
    elif _ONECCL_ORIGIN.match(text, begin):
        host = _PALS.match(text[:begin])
        name = f"{host[1]}:{{}}" if host else "process {}"
        origins = [
            (one, None if task and not host else name.format(one[1] or one[2]), one.end())
            for one in _ONECCL_ORIGIN.finditer(text, begin)
        ]
    elif text.startswith(_ONECCL, begin) or prefixes().library.match(text, begin):
        return [Message(None, task, text, begin, signed=True)]
    else:
        return []
    ends = [one.start() for one, *_ in origins[1:]] + [len(text)]
    return [
        Message(process, task, text[start:end], signed=True, has_origin=True)
        for (_, process, start), end in zip(origins, ends, strict=True)
    ]


def warns(message: Message, end: int) -> bool:
    """Return whether a program's prefix, up to `end`, marks the message as a warning or less."""
    return not message.signed and prefixes().warning.search(message.text[:end], message.start) is not None


def plain(part: bytes) -> str:
    """Return a line, or a drawn part of one, as text without colours, truncated to the limit."""
    text = part[: 4 * LINE_LIMIT].decode("utf-8", "replace")[:LINE_LIMIT]
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    text = _COPIED_COLOUR.sub("", text)
    if PROBE in text and text.startswith(PROBE, begin := end_of(prefixes().launcher, text)):
        return text[:begin] + _quoted_by_probe(text[begin:])
    return text


def excerpt(text: str, span: tuple[int, int]) -> str:
    """Return the part of a message stored as evidence: unchanged text, enough to show `span`."""
    start = 0 if span[1] <= EVIDENCE_LIMIT else span[0]
    kept = text[start : start + 4 * EVIDENCE_LIMIT].strip()
    return f"{_CUT}{kept}" if start else kept


def evidence_text(kept: str) -> str:
    """Return an excerpt in a form fit for a report: one printable line of limited length, without anything that looks
    like a secret.
    """
    limit = EVIDENCE_LIMIT + kept.startswith(_CUT)
    printable = one_line(redact(kept)[: limit + 1])
    return f"{printable[:limit]}{_CUT}" if len(printable) > limit else printable


def probe_event(line: str) -> tuple[str, dict[str, str]] | None:
    """Return the topic and the values of a line `@probe <topic> key=value …` of lumiimg's own probes, or None.

    Values are percent-encoded in the line and decoded here: they may contain anything.
    """
    found = _EVENT.match(line)
    if found is None:
        return None
    pairs = (word.partition("=") for word in found[2].split())
    return found[1], {key: unquote(value, errors="replace") for key, _, value in pairs}


def _quoted_by_probe(line: str) -> str:
    """Return the message in a probe's line.

    A plugin's log line is returned as it is, a loader's error is prefixed with `dlopen-failed: `, and everything else
    becomes `probe <topic> rc=<n> key=value: HIP error: <text>`.
    """
    topic, values = probe_event(line) or ("", {})
    error, of = values.pop("error", ""), "HIP" if topic.startswith("hip") else "NCCL"
    if topic == "log":
        return values.get("text", "")
    if topic == "dlopen" and values.get("ok") == "0":
        return f"dlopen-failed: {error}"
    said = " ".join(f"{key}={value}" for key, value in ({"rc": values.pop("rc", "")} | values).items() if value)
    return f"probe {topic} {said}" + f": {of} error: {error}" * bool(error)


def without_records(block: bytes, records: int, others: int) -> tuple[bytes, int]:
    """Return whole lines of a log with each JSON record replaced by its message; the number of lines stays the same.

    A collector of container logs writes every line as a record; records among other lines are program output, such as a
    data set or a model's answers. `records` counts the earlier lines of the file that look like a record or are empty,
    `others` the rest; the number of such lines in this block is returned as well. A message of several lines stays one
    line, its parts separated by CR as those of a progress bar are.
    """
    # searching for one byte is ten times faster than for two
    if b"{" not in block or not (block.startswith(b"{") or b"\n{" in block):
        return block, 0
    lines = block.removesuffix(b"\n").split(b"\n")
    here = sum(1 for line in lines if line.startswith(b"{") or not line.strip())
    if others + len(lines) - here > 1 + (records + here) // _OTHERS_SHARE:
        return block, here
    unpacked = b"\n".join(_recorded(line) if line.startswith(b"{") else line for line in lines)
    return unpacked + b"\n" * block.endswith(b"\n"), here


def _recorded(line: bytes) -> bytes:
    """Return the message of a record, or the line unchanged if it is not one: programs may print JSON of their own."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    for key, beside in prefixes().records:
        if key in record and not beside.isdisjoint(record) and record.get("stream", "stdout") in ("stdout", "stderr"):
            text = record[key]
            if isinstance(text, list) and all(type(byte) is int and 0 <= byte < 256 for byte in text):
                raw = bytes(text)  # journald stores text that is not UTF-8 this way
            else:
                raw = text.encode("utf-8", "replace") if isinstance(text, str) else b""
            return raw.rstrip(b"\r\n").replace(b"\n", b"\r")
    return line


def announces_table(block: bytes) -> bool:
    """Return whether a block may contain the header or the end of a benchmark table."""
    return b"#" in block and any(words in block for words in TABLE_WORDS)
