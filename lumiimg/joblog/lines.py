r"""One line of a job log -> the messages in it, each with the process that wrote it.

NCCL and RCCL print `host:pid:tid [device] [file:line] NCCL LEVEL text` (src/debug.cc), at the start of a line or behind
what a known launcher puts there (prefixes.toml); elsewhere such a text is a quotation. A text line may hold several
messages. Level and file:line are not read: they differ by build, and ROCm 7.2 prints the plugin's INFO as WARN and its
WARN without any prefix.
oneCCL prints `time:(tid) |CCL_LEVEL| text` (src/common/log), and no host: only a launcher's prefix gives that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lumiimg.core.errors import one_line
from lumiimg.core.redact import redact
from lumiimg.joblog.prefixes import end_of, prefixes

LINE_LIMIT = 16_384
"""Characters that are read of a line, or of each part that a progress bar has drawn.

NCCL's own buffer is 4,096; the rest is room for lines joined into one."""
EVIDENCE_LIMIT = 400
"""Characters of a message that are shown as evidence."""
_CUT = "…"
"""Stands where an excerpt leaves something out."""

_COLOUR = re.compile(r"(?:\x1b\[|\[(?=\d{1,3}(?:;\d{1,3}){0,4}m))[0-9;:?]{0,32}[A-Za-z]")
"""ANSI sequences, also where a copy from the terminal has lost the escape character."""
_ORIGIN = re.compile(r"(?<![\w.\-])(?!-|\d{1,2}:)([\w.\-]{1,255}:\d{1,10}):\d{1,10} (?:\[-?\d{1,11}\]|NCCL )")
"""`host:pid:tid [device]`; a host of one or two digits would be the hour of a time, and `-` is diff(1)'s mark."""
_ANOTHER = re.compile(r":\d{1,10} (?:\[-?\d|NCCL )")
"""The end of an origin: cheaper to look for than the whole, where there will be no second one."""
_LEVEL = re.compile(
    r"[ \t]{0,2}(?!-)(?:(?:(?:[\w.-]{1,64}|[^\s'`({\[\x22]{1,255}:\d{1,10}:\d{1,10}) )?\[-?\d{1,11}\] )?"
    r"(?:(?:[\w./+-]{1,300}|(?:\w|::|[~<>*&, ]){1,200}\([^\r\n\"'`]{0,200}\)[\w ]{0,20}):\d{1,6} )?"
    r"NCCL (?:INFO|WARN|TRACE|CALL|VERSION|ABORT|NONE) "
)
"""What NCCL prints behind the origin, and people leave in place when they take that out.

The place is a file, or a function with its types; a sentence before it quotes the line."""
_ONECCL = "|CCL_"
_ONECCL_ORIGIN = re.compile(r"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:(?:\( {0,9}(\d{1,10})\)|(\d{1,10})) (?=\|CCL_)")
"""A time and a thread, in parentheses up to 2021.16. It is the main thread, whose number is the process's, that says
of the network."""
_PALS = re.compile(r"[>\s]{0,8}([A-Za-z][\w.\-]{0,254}) \d{1,7}: $")
"""`mpiexec -l` of PALS, as on Aurora: the host, and the task."""
_TASK = re.compile(r"\s*(?:(\d{1,7}): |\[\d{1,7},(\d{1,7})\]<std(?:out|err)>:)")
"""`srun -l` and Open MPI's --tag-output: the task that wrote the line."""
_COPIED = re.compile(r"(?:[ \t>#*|•`-]|//){0,16}+(?:[\w./+-]{1,200}\.(?:out|err|log|txt)[:-](?:\d{1,9}[:-])?)?+")
"""What people put before a line that they copy: marks of Markdown, a comment's, what grep prints of several files."""
_INDENTS = frozenset({"", " ", "  ", "\t"})
"""What programs put before a line of their own."""
_QUOTED = re.compile(r"\s{0,8}(?:\d{1,7}: )? {4}> .{1,1024}?:\d{1,12}: ")
"""What `lumiimg log` quotes, of another log perhaps: a job script may read the log of the run before."""
PROBE = "@probe "
_EVENT = re.compile(r"@probe (\w+)((?: \w+=[^ ]*)*)\s*$")


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
    copied: bool = False
    """Something stands before it that no launcher prints: a copy of a line, of this job or of another one."""


def messages(line: bytes) -> list[Message]:
    """Split a line into its messages, without colours, cut to what is read of it; never raises.

    A progress bar goes back to the start of its line (CR): what it has drawn there comes before a message, in one line.
    A line of lumiimg's own probe becomes what it quotes; one that `lumiimg log` quotes is none of this job.
    """
    drawn = line.split(b"\r") if b"\r" in line else [line]
    texts = [text for part in drawn if part and not _QUOTED.match(text := plain(part))]
    if not texts:
        return []
    tag = _TASK.match(texts[0])
    task = (tag[1] or tag[2]) if tag else None
    return [message for text in texts for message in _joined(text, task)]


def _joined(text: str, task: str | None) -> list[Message]:
    """Return the messages of a text: a library's begin where the launcher's prefix ends, more may be joined to them."""
    begin = end_of(prefixes().launcher, text)
    if found := _signed(text, task, begin):
        return found
    marks = _COPIED.match(text)
    if copied := marks is not None and marks.end() > begin and text[begin : marks.end()] not in _INDENTS:
        begin = end_of(prefixes().launcher, text, marks.end())
        if found := _signed(text, task, begin):
            return [message._replace(copied=True) for message in found]
    level = _LEVEL.match(text, begin)
    return [Message(None, task, text, level.end() if level else begin, copied=copied)]


def _signed(text: str, task: str | None, begin: int) -> list[Message]:
    """Return the messages of which the first begins there with the sign of its library; none where there is no sign."""
    first = _ORIGIN.match(text, begin)
    if first is not None:
        more = list(_ORIGIN.finditer(text, first.end())) if _ANOTHER.search(text, first.end()) else []
        ends = [origin.start() for origin in more] + [len(text)]
        return [
            Message(o[1], task, text[o.start() : end], signed=True, has_origin=True)
            for o, end in zip([first, *more], ends, strict=True)
        ]
    if _ONECCL_ORIGIN.match(text, begin):
        return _of_oneccl(text, task, begin)
    signed = text.startswith(_ONECCL, begin) or prefixes().library.match(text, begin)
    return [Message(None, task, text, begin, signed=True)] if signed else []


def _of_oneccl(text: str, task: str | None, begin: int) -> list[Message]:
    origins = list(_ONECCL_ORIGIN.finditer(text, begin))
    host = _PALS.match(text[:begin])
    ends = [origin.start() for origin in origins[1:]] + [len(text)]
    found = []
    for origin, end in zip(origins, ends, strict=True):
        thread = origin[1] or origin[2]
        process = f"{host[1]}:{thread}" if host else None if task else f"process {thread}"
        found.append(Message(process, task, text[origin.end() : end], signed=True, has_origin=True))
    return found


def warns(message: Message, end: int) -> bool:
    """Whether what a program put before its words, up to `end`, says that they are a warning, or less."""
    return not message.signed and prefixes().warning.search(message.text[:end], message.start) is not None


def plain(part: bytes) -> str:
    """Return a line, or what was drawn of one, as text without colours, cut to what is read of it."""
    text = part[: 4 * LINE_LIMIT].decode("utf-8", "replace")[:LINE_LIMIT]
    if "\x1b" in text or "[" in text:
        text = _COLOUR.sub("", text)
    return _quoted_by_probe(text) if text.startswith(PROBE) else text


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
    from urllib.parse import unquote  # of no use to the log of a job

    found = _EVENT.match(line)
    if found is None:
        return None
    pairs = (word.partition("=") for word in found[2].split())
    return found[1], {key: unquote(value, errors="replace") for key, _, value in pairs}


def _quoted_by_probe(line: str) -> str:
    """Return what a line of a probe says.

    A plugin's log line stands for itself, a loader's error follows `dlopen-failed: `, a call's return code reads
    `probe <topic> rc=<n>`.
    """
    topic, values = probe_event(line) or ("", {})
    if topic == "log":
        return values.get("text", "")
    if topic == "dlopen" and values.get("ok") == "0":
        return f"dlopen-failed: {values.get('error', '')}"
    if "rc" in values:
        return f"probe {topic} rc={values['rc']}"
    return ""
