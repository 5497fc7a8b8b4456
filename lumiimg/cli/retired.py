"""Commands, options and values that are gone, and what to use instead.

A row is read only where a command line cannot be parsed, so one whose command is still there says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

_BUILDS = ("build", "adapt", "rebuild")
_AGAIN = "build again without it: layers that are ready come from the cache"
_FLAT = "leave it out: every image is flat"
_DEFINITION = "`lumiimg build --definitions DIR` writes the files, and `apptainer build` builds them"
_PER_PROCESS = "leave it out: the numbers are those of one process; multiply by how many a job has"
_TAR = "use `tar` on the folders of the layers in the cache"
_MODULE = "use `lumiimg module IMAGE -o DIR --host FILE`"

INSTEAD = {
    "sign": "use `apptainer sign IMAGE`",
    "verify": "use `apptainer verify IMAGE`",
    "reframe": "docs/support has a ReFrame test to copy",
    "refresh": "name the version, as in --add vllm=0.12.0: the package index is asked then",
    "why": "use `lumiimg build --why LAYER`, with the base and layers of the image",
    "cache export": _TAR,
    "cache import": _TAR,
    "host prolog": "docs/support has a prolog to copy",
    "trial report --reframe": "docs/support has a ReFrame test to copy; FOLDER/trial.json has what was measured",
    "host scan --libfabric": "leave it out: the distribution has the headers that the plugin needs",
    "bench import --svg": "leave it out: the numbers are a table, and JSON with --json",
    "bench import --nodes": _PER_PROCESS,
    "bench import --ranks": _PER_PROCESS,
    "job --profile": "put the profiler before the program: -- rocprofv3 -- PROGRAM",
    **dict.fromkeys([f"{name} --keep-going" for name in _BUILDS], _AGAIN),
    **dict.fromkeys([f"{name} --format layered" for name in _BUILDS], _FLAT),
    **dict.fromkeys([f"{name} --format flat" for name in _BUILDS], _FLAT),
    **dict.fromkeys([f"{name} --strategy definition" for name in _BUILDS], _DEFINITION),
    **dict.fromkeys([f"bind --format {form}" for form in ("lmod", "tcl")], _MODULE),
    "bind --format cdi": "no CDI file is written; `--format json` has the binds",
}
"""By the words of the command, and its option, with the value where only that is gone."""


def retired(command: str, words: Iterable[str]) -> tuple[str, str] | None:
    """Return (what is gone, what to use) of words that a command cannot parse; it is "" for lumiimg itself.

    An option's value is the next word, or stands behind `=`.
    """
    parts = [part for word in words for part in word.split("=", 1)]
    for number, part in enumerate(parts):
        for gone in (part, " ".join(parts[number : number + 2])):
            if instead := INSTEAD.get(f"{command} {gone}".strip()):
                return gone, instead
    return None
