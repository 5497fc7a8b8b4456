"""What `ldd` says: each file as a tree of what it loads, of many those that lack something."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumiimg.elf.objects import FoundBy
from lumiimg.findings import NO_ADVICE, Advice, Severity
from lumiimg.report.document import Document, Item, Paragraph, Section, Tree, trees_of
from lumiimg.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumiimg.elf.objects import LoadedObject, LoadOutcome
    from lumiimg.host.image_libraries import Libraries

_TREES = 3
"""Files that have a tree each; of more only those that lack something are of interest."""
_MOST = 5
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


def ldd_document(image: str, found: Libraries) -> Document:
    """Return what `ldd` says."""
    outcomes, by_kernel, undecided = found.files, found.by_kernel, found.undecided
    every = [*outcomes.values(), *by_kernel.values()]
    if undecided or not every:
        sentence = f"CANNOT TELL: {undecided}" if undecided else "no program and no library in this image"
        severity = Severity.UNKNOWN if undecided else Severity.INFO
    else:
        sentence = _of_one(*outcomes.items()) if len(every) == 1 else _of_many(outcomes, every)
        severity = Severity.OK if all(outcome.ok for outcome in every) else Severity.PROBLEM
    has_trees = len(outcomes) <= _TREES
    return Document(
        command="ldd",
        subject=image,
        is_list=has_trees,
        severity=severity,
        sentence=sentence,
        advice=Advice(every[0].errors[0]) if len(every) == 1 and every[0].errors else NO_ADVICE,
        sections=(
            Section("What is not known", (Item(Severity.UNKNOWN, doubt) for doubt in found.notes)),
            *(_trees(outcomes, by_kernel) if has_trees else _lists(outcomes, by_kernel)),
        ),
    )


def _of_one(of: tuple[str, LoadOutcome]) -> str:
    path, outcome = of
    if not outcome.ok:
        return f"{path} would not load"
    if outcome.root is not None and not outcome.root.facts.is_dynamic:
        return f"{path} is statically linked"
    return f"{path} loads with all that it needs: {count(len(outcome.objects) - 1, 'library')}"


def _of_many(outcomes: Mapping[str, LoadOutcome], every: Sequence[LoadOutcome]) -> str:
    bad = sum(not outcome.ok for outcome in outcomes.values())
    ends = f", {bad} would not" if bad else " with all that they need"
    also = "" if bad or all(outcome.ok for outcome in every) else ", but not as the kernel starts them"
    return f"{count(len(outcomes), 'file')}: {len(outcomes) - bad} would load{ends}{also}"


def _missing(outcomes: Mapping[str, LoadOutcome]) -> Iterator[Paragraph]:
    """Yield which libraries are missing most often."""
    missing = Counter(item.name for outcome in outcomes.values() for item in outcome.missing)
    if missing.total() > _TREES:
        most = ", ".join(f"{name} ({times})" for name, times in missing.most_common(_MOST))
        yield Paragraph(f"missing most often: {most}")
        note = "what a file's own program would have loaded before it (its RPATH, a dlopen) is not counted"
        yield Paragraph(note, quiet=True)


def _trees(outcomes: Mapping[str, LoadOutcome], by_kernel: Mapping[str, LoadOutcome]) -> Iterator[Section]:
    for path, outcome in outcomes.items():
        if path in by_kernel:
            yield _tree(f"{path}, given to ld.so (`ld.so {path}`)", outcome)
            yield _tree(f"{path}, started by its name, which loads others", by_kernel[path])
        else:
            yield _tree(path, outcome)


def _tree(title: str, outcome: LoadOutcome) -> Section:
    needs = _needs(outcome, outcome.root) if outcome.root is not None else ()
    is_static = outcome.root is not None and not outcome.root.facts.is_dynamic
    items = [Item(Severity.PROBLEM, error) for error in outcome.errors]
    items += [Item(Severity.UNKNOWN, warning) for warning in outcome.warnings]
    tree = Tree(title, "statically linked" if is_static else "", branches=needs)
    return Section(title, (tree, *items))


def _needs(outcome: LoadOutcome, root: LoadedObject) -> tuple[Tree, ...]:
    """Return what an object needs, and below each what that one needs, where it is met first.

    Without recursion: chains can be long.
    """
    by_path = {loaded.path: loaded for loaded in outcome.objects}
    shown: set[str] = set()
    rows: list[tuple[int, Tree]] = []
    pending = [(0, name) for name in reversed(root.facts.needed)]
    while pending:
        depth, name = pending.pop()
        path = outcome.closure.get(name)
        if path is None:
            rows.append((depth, Tree(f"{name} => not found", severity=Severity.PROBLEM)))
            continue
        found = by_path.get(path)
        rule = f"  [{_RULES[found.found_by]}]" if found is not None and found.found_by in _RULES else ""
        again = found is not None and path in shown and bool(found.facts.needed)
        rows.append((depth, Tree(name, f"=> {path}{rule}{' (above)' if again else ''}")))
        if found is not None and path not in shown:
            shown.add(path)
            pending += [(depth + 1, needed) for needed in reversed(found.facts.needed)]
    return trees_of(rows)


def _lists(outcomes: Mapping[str, LoadOutcome], by_kernel: Mapping[str, LoadOutcome]) -> Iterator[Section]:
    """Yield what is missing most often, and the files that lack something; with --verbose the others, too."""
    yield Section("What is missing", _missing(outcomes))
    bad = ((path, "; ".join(outcome.errors)) for path, outcome in outcomes.items() if not outcome.ok)
    items = [Item(Severity.PROBLEM, f"{path}: {errors.removeprefix(f'{path}: ')}") for path, errors in bad]
    for path, outcome in by_kernel.items():
        ends = "all is found" if outcome.ok else outcome.errors[0]
        severity = Severity.OK if outcome.ok else Severity.PROBLEM
        items.append(Item(severity, f"{path}, started by its name, loads others: {ends}"))
    items += [Item(Severity.OK, path, verbose=True) for path, outcome in outcomes.items() if outcome.ok]
    yield Section("Files", items)
