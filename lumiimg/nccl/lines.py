r"""One line of a job log -> the messages in it, each with the process that wrote it.

NCCL and RCCL print `host:pid:tid [device] [file:line] NCCL LEVEL text` (src/debug.cc); what stands before (srun -l,
Open MPI tags, Ray, timestamps, colours) is skipped, and a text line may hold several messages. Level and file:line are
not read: they differ by build, and ROCm 7.2 prints the plugin's INFO as WARN and its WARN without any prefix.
oneCCL prints `time:(tid) |CCL_LEVEL| text` (src/common/log), and no host: only a launcher's prefix tells that.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lumiimg.errors import one_line
from lumiimg.secret import hidden

LINE_LIMIT = 16_384
"""Characters that are read of a line, or of each part that a progress bar has drawn.

NCCL's own buffer is 4,096; the rest is room for lines joined into one."""
EVIDENCE_LIMIT = 400
"""Characters of a message that are kept as evidence."""

_COLOUR = re.compile(r"(?:\x1b\[|\[(?=\d{1,3}(?:;\d{1,3}){0,4}m))[0-9;:?]{0,32}[A-Za-z]")
"""ANSI sequences, also where a copy from the terminal has lost the escape character."""
_ORIGIN = re.compile(r"(?<![\w.\-])(?!\d{1,2}:)([\w.\-]{1,255}:\d{1,10}):\d{1,10} (?:\[-?\d{1,11}\]|NCCL )")
"""`host:pid:tid [device]`; a host of one or two digits would be the hour of a time."""
_ANOTHER = re.compile(r":\d{1,10} (?:\[-?\d|NCCL )")
"""The end of an origin: cheaper to look for than the whole, where there will be no second one."""
_ONECCL = "|CCL_"
_ONECCL_ORIGIN = re.compile(r"\d{4}:\d\d:\d\d-\d\d:\d\d:\d\d:(?:\( {0,9}(\d{1,10})\)|(\d{1,10})) (?=\|CCL_)")
"""A time and a thread, in parentheses up to 2021.16. It is the main thread, whose number is the process's, that tells
of the network."""
_PALS = re.compile(r"\s*([A-Za-z][\w.\-]{0,254}) \d{1,7}: $")
"""`mpiexec -l` of PALS, as on Aurora: the host, and the task."""
_TASK = re.compile(r"\s*(?:(\d{1,7}): |\[\d{1,7},(\d{1,7})\]<std(?:out|err)>:)")
"""`srun -l` and Open MPI's --tag-output: the task that wrote the line."""
_TAG_LENGTH = 8
"""What is no longer than this, in front of an origin, is a tag and no message."""
_SHELL_TRACE = re.compile(r"\s{0,8}(?:\d{1,7}: )?\+{1,8} ")
"""A command that the job script echoes (`set -x`): a `grep` for a log line is no log line."""
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


def messages(line: bytes) -> list[Message]:
    """Split a line into its messages, without colours, cut to what is read of it; never raises.

    A progress bar goes back to the start of its line (CR): what it has drawn there comes before a message, in one line.
    A line of lumiimg's own probe becomes what it quotes; one that `lumiimg log` quotes is none of this job.
    """
    drawn = line.split(b"\r") if b"\r" in line else [line]
    texts = [text for part in drawn if part and not _QUOTED.match(text := _plain(part))]
    if not texts:
        return []
    tag = _TASK.match(texts[0])
    task = (tag[1] or tag[2]) if tag else None
    return [message for text in texts for message in _joined(text, task)]


def _joined(text: str, task: str | None) -> list[Message]:
    if _ONECCL in text and not _SHELL_TRACE.match(text):
        return _of_oneccl(text, task)
    first = _ORIGIN.search(text)
    if first is None:
        return [] if _SHELL_TRACE.match(text) else [Message(None, task, text)]
    found = [Message(None, task, text[: first.start()])] if first.start() > _TAG_LENGTH else []
    more = list(_ORIGIN.finditer(text, first.end())) if _ANOTHER.search(text, first.end()) else []
    ends = [origin.start() for origin in more] + [len(text)]
    found.extend(Message(o[1], task, text[o.start() : end]) for o, end in zip([first, *more], ends, strict=True))
    return found


def _of_oneccl(text: str, task: str | None) -> list[Message]:
    origins = list(_ONECCL_ORIGIN.finditer(text))
    if not origins:
        return [Message(None, task, text)]
    head = text[: origins[0].start()]
    host = _PALS.match(head)
    ends = [origin.start() for origin in origins[1:]] + [len(text)]
    found = [Message(None, task, head)] if host is None and len(head) > _TAG_LENGTH else []
    for origin, end in zip(origins, ends, strict=True):
        thread = origin[1] or origin[2]
        process = f"{host[1]}:{thread}" if host else None if task else f"process {thread}"
        found.append(Message(process, task, text[origin.end() : end]))
    return found


def _plain(part: bytes) -> str:
    text = part[: 4 * LINE_LIMIT].decode("utf-8", "replace")[:LINE_LIMIT]
    if "\x1b" in text or "[" in text:
        text = _COLOUR.sub("", text)
    return _quoted_by_probe(text) if text.startswith(PROBE) else text


def evidence_text(text: str, span: tuple[int, int]) -> str:
    """Return a message as it may stand in a report: one printable line of a sane length that shows `span`, without what
    looks like a secret.
    """
    start = 0 if span[1] <= EVIDENCE_LIMIT else span[0]
    printable = one_line(hidden(text[start : start + 4 * EVIDENCE_LIMIT].strip())[: EVIDENCE_LIMIT + 1])
    head = "…" if start else ""
    tail = "…" if len(printable) > EVIDENCE_LIMIT else ""
    return f"{head}{printable[:EVIDENCE_LIMIT]}{tail}"


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
