r"""One line of a job log -> the messages in it, each with the process that wrote it.

NCCL and RCCL print `host:pid:tid [device] [file:line] NCCL LEVEL text` (src/debug.cc), at the start of a line or
behind what a known launcher puts there (prefixes.toml; learned.py has taken away what another one wrote); elsewhere
such a text is a quotation. A text line may hold several messages. Level and file:line are not read: they differ by
build, and ROCm 7.2 prints the plugin's INFO as WARN and its WARN without any prefix.
oneCCL prints `time:(tid) |CCL_LEVEL| text` (src/common/log), and no host: only a launcher's prefix gives that.
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
"""Characters that are read of a line, or of each part that a progress bar has drawn.

NCCL's own buffer is 4,096; the rest is room for lines joined into one."""
EVIDENCE_LIMIT = 400
"""Characters of a message that are shown as evidence."""
PROBE = "@probe "
"""Before each line of lumiimg's own probes."""
_CUT = "…"
"""Stands where an excerpt leaves something out."""
_MOST_PREFIXES = 8
"""That follow each other: a container's, a launcher's, a framework's, a time."""

_COLOUR = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]")
"""ANSI sequences."""
_COPIED_COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""The same where a copy from the terminal has lost the escape character."""
_ORIGIN = re.compile(r"(?<![\w.\-])(?!-|\d{1,2}:)([\w.\-]{1,255}:\d{1,10}):\d{1,10} (?:\[-?\d{1,11}\]|NCCL )")
"""`host:pid:tid [device]`; a host of one or two digits would be the hour of a time, and `-` is diff(1)'s mark."""
_ANOTHER = re.compile(r":\d{1,10} (?:\[-?\d|NCCL )")
"""The end of an origin: cheaper to look for than the whole, where there will be no second one."""
_LEVEL = re.compile(
    r"[ \t]{0,2}(?![-+])(?:(?:(?:[\w.-]{1,64}|[^\s'`({\[\x22]{1,255}:\d{1,10}:\d{1,10}) )?\[-?\d{1,11}\] )?"
    r"(?:(?:[\w./+-]{1,300}|(?:\w|::|[~<>*&, ]){1,200}\([^\r\n\"'`]{0,200}\)[\w ]{0,20}):\d{1,6} {1,2}"
    r"(?:\(\w{1,80}\) )?)?NCCL (?:INFO|WARN|TRACE|CALL|VERSION|ABORT|NONE) "
)
"""What NCCL prints behind the origin, and people leave in place when they take that out.

The place is a file (from 2.27 on with a function), or a function with its types; words before it quote the line."""
_ONECCL = "|CCL_"
_ONECCL_ORIGIN = re.compile(r"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:(?:\( {0,9}(\d{1,10})\)|(\d{1,10})) (?=\|CCL_)")
"""A time and a thread, in parentheses up to 2021.16. It is the main thread, whose number is the process's, that says
of the network."""
_PALS = re.compile(r"[>\s]{0,8}([A-Za-z][\w.\-]{0,254}) \d{1,7}: $")
"""`mpiexec -l` of PALS, as on Aurora: the host, and the task."""
_TASK = re.compile(
    r"\s*(?:(\d{1,7}): |\[(?:[\w.@-]{1,112},(?:mpirank:)?)?(\d{1,7})(?:,[\w.-]{1,64})?\](?:\[[\w.:-]{1,80}\])?"
    r"<std(?:out|err)>:)"
)
"""`srun -l`, Open MPI's --tag-output: the task that wrote the line."""
_OF_PROBE = re.compile(r"\bprobe \w{1,40} (?:rc=\d{1,5} )?rank=(\d{1,7})\b")
"""The rank that wrote a line, as lumiimg's own programs say it."""
_COPIED = re.compile(
    r"(?!\*\*\* (?:SIG[A-Z]{3,4} received|Error in `|An error occurred in |MPI_))"
    r"(?:[ \t>#*|•`-]|//|\+(?![ +])){0,16}+(?:[\w./+-]{1,200}\.(?:out|err|log|txt)[:-](?:\d{1,9}[:-])?)?+"
)
"""What people put before a line that they copy: marks of Markdown, a comment's, what grep prints of several files.

Not the asterisks of glibc, of Open MPI and of Abseil."""
_INDENTS = frozenset({"", " ", "  ", "\t"})
"""What programs put before a line of their own."""
_QUOTED = re.compile(r"\s{0,8}(?:\d{1,7}: )? {4}> .{1,1024}?:\d{1,12}: ")
"""What a report on a log quotes, of another log perhaps: a job script may read the log of the run before."""
_EVENT = re.compile(r"@probe (\w+)((?: \w+=[^ ]*)*)\s*$")
_NET = r"(?:\t| {0,2}+)(?:\[Rank \d{1,7}\] )?(?:\w{0,8}(?:NET|ncclComm)[\w/]{1,40}(?: Libfabric)? ?:? )?"
_CHANNEL = r"(?:Channel \d{1,4}(?:/\d{1,4})? ?: \d{1,7}\[\w{1,10}\] (?:-> \d{1,7}\[\w{1,10})?)?"
_OTHERS_SHARE = 100
"""One other line may stand among this number of records: a record that was cut, a line of tail(1) between files."""


TABLE_WORDS: tuple[bytes, ...] = (
    b"busbw",
    b"Avg bus bandwidth",
    b"Out of bounds values",
    b"Collective test starting",
    b"# nThread",
    b"# Using devices",
)
"""Of benchmarks (bandwidth.py): where none of them is, no table begins or ends."""


class Message(NamedTuple):
    """One message of a line."""

    process: str | None
    """`host:pid`; None where the message carries no such prefix."""
    task: str | None
    """Number given by srun -l or Open MPI."""
    text: str
    start: int = 0
    """Where it begins, behind what the launcher and the library put before it."""
    signed: bool = False
    """A library's own sign stands before it, so all of it is what this library says."""
    has_origin: bool = False
    """It names the process or the thread that wrote it. Without, it may be an excerpt, and proves nothing alone."""


class Prefixes(NamedTuple):
    """What may stand before a message of a line: patterns, each of all prefixes that may follow each other."""

    launcher: re.Pattern[str]
    """Before any line."""
    library: re.Pattern[str]
    """One with which a library signs that prints no `host:pid:tid`."""
    bare: re.Pattern[str]
    """Before a message of a collective library from which somebody has taken its origin."""
    program: re.Pattern[str]
    """Of an error of any program."""
    warning: re.Pattern[str]
    """In what stands before the words of a program that logs less than an error."""
    records: tuple[tuple[str, frozenset[str]], ...]
    """Keys of a message in a log of JSON, each with keys of which its collector writes one beside it."""


@cache
def prefixes() -> Prefixes:
    """Return the knowledge base prefixes.toml; a mistake in it is an error found by its tests."""
    data = package_toml(__package__, "prefixes.toml")
    launcher, library, program = (
        "|".join(table["pattern"] for table in data[kind]) for kind in ("launcher", "library", "program")
    )
    return Prefixes(
        launcher=re.compile(f"(?:{launcher}){{0,{_MOST_PREFIXES}}}+"),
        library=re.compile(library),
        bare=re.compile(_NET + _CHANNEL),
        program=re.compile(rf"(?:\t| {{0,2}}+)(?:{program}|{launcher}){{0,{_MOST_PREFIXES}}}+(?:/[\w./+-]{{0,300}}/)?"),
        warning=re.compile(data["warning"]["pattern"]),
        records=tuple((table["text"], frozenset(table["beside"])) for table in data["record"]),
    )


def end_of(pattern: re.Pattern[str], text: str, start: int = 0) -> int:
    """Return where the prefixes end that stand at `start`."""
    found = pattern.match(text, start)
    return found.end() if found else start


def messages(line: bytes) -> list[Message]:
    """Split a line into its messages, without colours, cut to what is read of it; never raises.

    What stands behind marks that people put before lines which they copy is of another job.

    A progress bar goes back to the start of its line (CR): what it has drawn there comes before a message, in one line.
    A line of lumiimg's own probe becomes what it quotes; one that a report on a log quotes is none of this job.
    """
    drawn = line.split(b"\r") if b"\r" in line else [line]
    texts = [text for part in drawn if part and not _QUOTED.match(text := plain(part))]
    if not texts:
        return []
    if len(texts) == 1 and (origin := _ORIGIN.match(texts[0])) and not _ANOTHER.search(texts[0], origin.end()):
        # most lines of a job, in less time
        return [Message(origin[1], None, texts[0], signed=True, has_origin=True)]
    tag = _TASK.match(texts[0]) or _OF_PROBE.search(texts[0])
    task = tag[tag.lastindex or 0] if tag else None
    return [message for text in texts for message in _joined(text, task)]


def _joined(text: str, task: str | None) -> list[Message]:
    """Return the messages of a text: a library's begin where the launcher's prefix ends, more may be joined to them."""
    begin = end_of(prefixes().launcher, text)
    if found := _signed(text, task, begin):
        return found
    copied = _COPIED.match(text)
    if copied is not None and copied.end() > begin and text[begin : copied.end()] not in _INDENTS:
        return []
    level = _LEVEL.match(text, begin)
    return [Message(None, task, text, level.end() if level else begin)]


def _signed(text: str, task: str | None, begin: int) -> list[Message]:
    """Return the messages of which the first begins there with the sign of its library; none where there is no sign."""
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
    """Whether what a program put before its words, up to `end`, says that they are a warning, or less."""
    return not message.signed and prefixes().warning.search(message.text[:end], message.start) is not None


def plain(part: bytes) -> str:
    """Return a line, or what was drawn of one, as text without colours, cut to what is read of it."""
    text = part[: 4 * LINE_LIMIT].decode("utf-8", "replace")[:LINE_LIMIT]
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    text = _COPIED_COLOUR.sub("", text)
    if PROBE in text and text.startswith(PROBE, begin := end_of(prefixes().launcher, text)):
        return text[:begin] + _quoted_by_probe(text[begin:])
    return text


def excerpt(text: str, span: tuple[int, int]) -> str:
    """Return what is kept of a message as evidence: enough to show `span`, as it stands there."""
    start = 0 if span[1] <= EVIDENCE_LIMIT else span[0]
    kept = text[start : start + 4 * EVIDENCE_LIMIT].strip()
    return f"{_CUT}{kept}" if start else kept


def evidence_text(kept: str) -> str:
    """Return an excerpt as it may stand in a report: one printable line of a sane length, without what looks like a
    secret.
    """
    limit = EVIDENCE_LIMIT + kept.startswith(_CUT)
    printable = one_line(redact(kept)[: limit + 1])
    return f"{printable[:limit]}{_CUT}" if len(printable) > limit else printable


def probe_event(line: str) -> tuple[str, dict[str, str]] | None:
    """Return the topic and the values of `@probe <topic> key=value …`, a line of lumiimg's own probes, or None.

    Values are percent-encoded in the line, and decoded here: they may hold anything.
    """
    found = _EVENT.match(line)
    if found is None:
        return None
    pairs = (word.partition("=") for word in found[2].split())
    return found[1], {key: unquote(value, errors="replace") for key, _, value in pairs}


def _quoted_by_probe(line: str) -> str:
    """Return what a line of a probe says.

    A plugin's log line stands for itself, a loader's error follows `dlopen-failed: `, all else reads
    `probe <topic> rc=<n> key=value: HIP error: <text>`.
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
    """Return whole lines of a log, each record of JSON among them replaced with its message: none is added or lost.

    A collector of containers' logs writes all lines so; records among other lines are what a program printed: a data
    set, a model's answers. `records` and `others`: lines of the file before these that begin as a record, or are empty,
    and that do not; how many of these do comes back. A message of several lines stays one, its parts separated as
    those of a progress bar are (CR).
    """
    # one byte is found ten times as fast as two
    if b"{" not in block or not (block.startswith(b"{") or b"\n{" in block):
        return block, 0
    lines = block.removesuffix(b"\n").split(b"\n")
    here = sum(1 for line in lines if line.startswith(b"{") or not line.strip())
    if others + len(lines) - here > 1 + (records + here) // _OTHERS_SHARE:
        return block, here
    unpacked = b"\n".join(_recorded(line) if line.startswith(b"{") else line for line in lines)
    return unpacked + b"\n" * block.endswith(b"\n"), here


def _recorded(line: bytes) -> bytes:
    """Return the message of a record; the line as it is where it is none: a program may print JSON of its own."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line
    for key, beside in prefixes().records:
        if key in record and not beside.isdisjoint(record) and record.get("stream", "stdout") in ("stdout", "stderr"):
            text = record[key]
            if isinstance(text, list) and all(type(byte) is int and 0 <= byte < 256 for byte in text):
                raw = bytes(text)  # of journald, where it is not UTF-8
            else:
                raw = text.encode("utf-8", "replace") if isinstance(text, str) else b""
            return raw.rstrip(b"\r\n").replace(b"\n", b"\r")
    return line


def announces_table(block: bytes) -> bool:
    """Whether a block may hold the head or the end of a benchmark's table."""
    return b"#" in block and any(words in block for words in TABLE_WORDS)
