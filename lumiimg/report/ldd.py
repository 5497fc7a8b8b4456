"""What `lumiimg ldd` says: a tree for people, the contract's JSON for machines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lumiimg.elf.objects import FoundBy
from lumiimg.errors import one_line
from lumiimg.report.console import MARKS, PLAIN_MARKS, console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lumiimg.elf.objects import LoadedObject, LoadOutcome

_TREES = 3
"""Up to so many files a tree each; more are told in one line each."""
_LINES, _MOST = 20, 5
_RULES = {
    FoundBy.INTERPRETER: "the loader itself",
    FoundBy.PRELOAD: "preloaded",
    FoundBy.PATH: "its own path",
    FoundBy.RPATH: "RPATH",
    FoundBy.LD_LIBRARY_PATH: "LD_LIBRARY_PATH",
    FoundBy.RUNPATH: "RUNPATH",
    FoundBy.CACHE: "ld.so.cache",
    FoundBy.DEFAULT: "default folder",
}


def to_json(outcomes: Mapping[str, LoadOutcome], undecided: str | None, doubts: Sequence[str]) -> dict[str, Any]:
    """Return the answer as JSON data.

    `undecided` says why there is none, `notes` what was not seen; neither is there otherwise.
    """
    files = {path: _outcome_data(outcome) for path, outcome in outcomes.items()}
    unknown = {"undecided": undecided, "notes": list(doubts)}
    return {"files": files, **{key: value for key, value in unknown.items() if value}}


def _outcome_data(outcome: LoadOutcome) -> dict[str, Any]:
    return {
        "closure": outcome.closure,
        "errors": list(outcome.errors),
        "warnings": list(outcome.warnings),
        "missing_versions": [
            {"provider": missing.provider, "version": missing.version, "required_by": missing.required_by}
            for missing in outcome.missing_versions
        ],
    }


def print_ldd(
    outcomes: Mapping[str, LoadOutcome], undecided: str | None, doubts: Sequence[str], *, verbose: bool, stderr: bool
) -> None:
    """Print the answer for a person."""
    out = console(stderr=stderr)
    for doubt in doubts:
        out.print(f"{_mark(out, 'unknown')} {one_line(doubt)}", style="yellow", soft_wrap=True)
    if undecided:
        out.print(f"CANNOT TELL: {undecided}", style="bold yellow", soft_wrap=True)
        return
    if not outcomes:
        out.print("no program and no library in this image")
        return
    if len(outcomes) <= _TREES:
        for path, outcome in outcomes.items():
            _print_tree(out, path, outcome)
    else:
        _print_many(out, outcomes, verbose=verbose)


def _print_many(out: Console, outcomes: Mapping[str, LoadOutcome], *, verbose: bool) -> None:
    bad = [path for path, outcome in outcomes.items() if not outcome.ok]
    shown = list(outcomes) if verbose else bad[:_LINES]
    for path in shown:
        _print_line(out, path, outcomes[path])
    if not verbose and len(bad) > _LINES:
        out.print(f"… and {len(bad) - _LINES} more (--verbose shows all, --json tells all)")
    missing = Counter(item.name for path in bad for item in outcomes[path].missing)
    if len(bad) > _LINES and missing:
        most = ", ".join(f"{one_line(name)} ({count})" for name, count in missing.most_common(_MOST))
        out.print(f"missing most often: {most}", soft_wrap=True)
        out.print(
            "what a file's own program would have loaded before it (its RPATH, a dlopen) is not counted", style="dim"
        )
    out.print(
        f"{len(outcomes)} files: {len(outcomes) - len(bad)} would load"
        + (f", {len(bad)} would not" if bad else " with all that they need"),
        style="bold red" if bad else "bold green",
    )


def _print_line(out: Console, path: str, outcome: LoadOutcome) -> None:
    mark = _mark(out, "ok" if outcome.ok else "problem")
    out.print(f"{mark} {one_line(path)}", style="red" if not outcome.ok else None, soft_wrap=True)
    for error in outcome.errors:
        out.print(f"    {one_line(error)}", soft_wrap=True)


def _mark(out: Console, severity: str) -> str:
    return (MARKS if out.encoding.startswith("utf") else PLAIN_MARKS)[severity]


def _print_tree(out: Console, path: str, outcome: LoadOutcome) -> None:
    out.print(one_line(path), style="bold", soft_wrap=True)
    if outcome.root is not None and not outcome.root.facts.is_dynamic:
        out.print("    statically linked")
    elif outcome.root is not None:
        _Tree(out, outcome).print_needs(outcome.root)
    for error in outcome.errors:
        out.print(f"{_mark(out, 'problem')} {one_line(error)}", style="red", soft_wrap=True)
    for warning in outcome.warnings:
        out.print(f"{_mark(out, 'unknown')} {one_line(warning)}", style="yellow", soft_wrap=True)
    if outcome.ok and outcome.root is not None:
        out.print(
            f"{_mark(out, 'ok')} loads with all that it needs: {len(outcome.objects) - 1} libraries", style="green"
        )
    out.print()


class _Tree:
    """Objects below what needs them, each one's own needs where it is met first."""

    def __init__(self, out: Console, outcome: LoadOutcome) -> None:
        self._out = out
        self._closure = outcome.closure
        self._by_path = {loaded.path: loaded for loaded in outcome.objects}
        self._shown: set[str] = set()
        branches = ("├── ", "└── ", "│   ") if out.encoding.startswith("utf") else ("|-- ", "`-- ", "|   ")
        self._branch, self._last, self._beside = branches

    def print_needs(self, root: LoadedObject) -> None:
        """Print what an object needs, and below each what that one needs; without recursion, chains can be long."""
        pending = self._lines_below(root, "")
        while pending:
            name, indent, last = pending.pop()
            path = self._closure.get(name)
            line = f"{indent}{self._last if last else self._branch}{one_line(name)}"
            if path is None:
                self._out.print(f"{line} => not found", style="red", soft_wrap=True)
                continue
            found = self._by_path.get(path)
            rule = f"  [{_RULES[found.found_by]}]" if found is not None and found.found_by in _RULES else ""
            again = found is not None and path in self._shown and bool(found.facts.needed)
            self._out.print(f"{line} => {one_line(path)}{rule}{' (above)' if again else ''}", soft_wrap=True)
            if found is not None and path not in self._shown:
                self._shown.add(path)
                pending += self._lines_below(found, indent + ("    " if last else self._beside))

    @staticmethod
    def _lines_below(loaded: LoadedObject, indent: str) -> list[tuple[str, str, bool]]:
        """Return (needed name, indent, whether it is the last of its siblings), the first one at the end."""
        needs = loaded.facts.needed
        return [(name, indent, position == len(needs) - 1) for position, name in enumerate(needs)][::-1]
