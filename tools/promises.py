"""`make mutate MODULE=promises`: does a test fail when a promise of docs/security.md is broken? Never part of a test.

promises.toml has, for each promise, guards that carry it, and what each looks like when it is gone. A mutation is put
into a copy of the tree, and the tests that carry its promise's number run until one fails: it is caught.
Tests that need an engine do not run here; a promise that has no others is shown as not tried.

As in mutation.py each mutation has a forked process, so that nothing is imported and collected again: its functions
get their new code there, and a constant its new value. Where a mutation is something else, pytest starts again.

A test that waits for ever fails by its own limit (tests/conftest.py), here a shorter one. Where even so nothing comes
of a mutation in its time, it is not caught.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.shared.promises import marked, promises
from tools.mutation import ROOT, functions_below, in_child, load_profile, say, set_constant

MUTATIONS = ROOT / "tools/promises.toml"
_WORKERS = 2
_LEFT_OUT = {".git", ".venv", ".mutation", ".mypy_cache", ".ruff_cache", ".hypothesis", "build", "dist"}
"""Of the tree, in a copy."""
_NO_PROGRAM = re.compile("NameError|SyntaxError")
_OPTIONS = ("-xqq", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One guard, and what breaks it."""

    promise: str
    file: str
    """Below lumiimg/."""
    guard: str
    """What stands there; once in the file."""
    broken: str
    """What is put in its place."""
    why: str
    """What holds no more."""


@dataclass(frozen=True, slots=True)
class Job:
    """A mutation to be tried, or none: the tests of a promise as they are."""

    promise: str
    mutation: Mutation | None
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fate:
    """What came of it."""

    job: Job
    state: str
    """`caught`, or why not."""
    test: str = ""
    """The first that failed."""


def read_mutations() -> list[Mutation]:
    """Return what is known to break each promise, in the order of the promises."""
    promises = tomllib.loads(MUTATIONS.read_text())
    return [Mutation(promise, **entry) for promise in sorted(promises) for entry in promises[promise]]


def named_tests() -> dict[str, tuple[str, ...]]:
    """Return the tests that carry each promise's number, as pytest calls them; none where all need an engine."""
    carried = sorted(marked())
    return {
        promise: tuple(
            f"tests/{file}::{name}" for of, file, name in carried if of == promise and file.startswith("unit/")
        )
        for promise in promises()
    }


def mutated(mutation: Mutation, text: str) -> str:
    """Return the text of the file with the mutation in it. Raises ValueError where its guard is not there once."""
    if (count := text.count(mutation.guard)) != 1:
        raise ValueError(f"{mutation.promise} {mutation.file}: {count} times in the file: {mutation.guard}")
    return text.replace(mutation.guard, mutation.broken)


class _Worker:
    """The plugin that takes the place of pytest's loop, in a process and a copy of the tree of its own."""

    def __init__(self, jobs: Any, fates: Any, limit_s: float) -> None:
        self._jobs = jobs
        self._fates = fates
        self._limit_s = limit_s
        self._items: dict[str, list[pytest.Item]] = defaultdict(list)
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            self._items[item.nodeid.partition("[")[0]].append(item)
        self._functions = functions_below(Path.cwd() / "lumiimg")
        for job in iter(self._jobs.get, None):
            self._fates.put(self._judge(job))
        return True

    def _judge(self, job: Job) -> Fate:
        if job.mutation is None:
            return _fate(job, in_child(partial(self._first_failure, job, lambda: None), timeout_s=self._limit_s))
        path = Path("lumiimg", job.mutation.file).absolute()
        text, status = path.read_text(), path.stat()
        after = mutated(job.mutation, text)
        path.write_text(after)  # for other processes, and for what is imported late
        put = self._put(path, text, after) if path.suffix == ".py" else lambda: None
        run = partial(self._first_failure, job, put) if put else partial(_anew, job, self._limit_s / 2)
        try:
            return _fate(job, in_child(run, timeout_s=self._limit_s))
        finally:
            path.write_text(text)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _put(self, path: Path, before: str, after: str) -> Callable[[], None] | None:
        """Return what puts a mutation into this process; None where it is of another kind."""
        name = ".".join(path.relative_to(Path.cwd()).with_suffix("").parts)
        was, now = ast.parse(before), ast.parse(after)
        pairs = zip_longest(_without_bodies(was), _without_bodies(now))
        changed = [n for n, (a, b) in enumerate(pairs) if a != b]
        constants = [node for n in changed if n < len(now.body) and isinstance(node := now.body[n], ast.Assign)]
        if len(constants) != len(changed) or len(was.body) != len(now.body):
            return None
        codes = {code.co_qualname: code for code in _codes(compile(after, str(path), "exec"))}

        def put() -> None:
            live = sys.modules.get(name)
            if live is None:
                return  # whoever imports it finds the mutation
            for value in vars(live).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
            for (file, function), found in self._functions.items():
                for one in found if file == str(path) and function in codes else ():
                    one.__code__ = codes[function]
            for node in constants:
                code = compile(ast.Module([node], []), str(path), "exec")
                for target in (target.id for target in node.targets if isinstance(target, ast.Name)):
                    set_constant(live, target, code)

        return put

    def _first_failure(self, job: Job, put: Callable[[], None]) -> str:
        """Return the first test that fails, and why; in a forked process."""
        put()
        items = [item for test in job.tests for item in self._items[test]]
        for item, following in zip_longest(items, items[1:]):
            for report in runtestprotocol(item, log=False, nextitem=following):
                if report.failed:
                    crash = getattr(report.longrepr, "reprcrash", None)
                    return f"{item.nodeid}\n{crash.message if crash else report.longrepr}"
        return ""


def _without_bodies(tree: ast.Module) -> Iterator[str]:
    """Yield each statement of a module as text, but for what functions do."""
    for statement in tree.body:
        for node in ast.walk(copy := ast.parse(ast.unparse(statement))):
            if isinstance(node, ast.FunctionDef):
                node.body = [ast.Pass()]
        yield ast.unparse(copy)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of each function of a module, and of its classes; of those within functions none."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and "<" not in inner.co_qualname:
            yield inner
            yield from _codes(inner)


def _anew(job: Job, limit_s: float) -> str:
    """Return the first test that fails in a pytest that is started for it."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", *_OPTIONS, "-rfE", "--basetemp=.tests", f"--limit-s={limit_s:.0f}"]
    done = subprocess.run([*words, *job.tests], env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)(.*)", done.stdout, re.MULTILINE)
    return f"{failed[1]}\n{failed[2]}" if failed else "" if done.returncode == 0 else f"!{done.stdout}{done.stderr}"


def _fate(job: Job, said: str | None) -> Fate:
    if said is None:
        return Fate(job, "no answer in its time")
    test, _, message = said.partition("\n")
    if said.startswith("!") or _NO_PROGRAM.search(message):
        return Fate(job, f"no program any more: {said}")
    return Fate(job, "caught" if said else "not caught", test)


def _work(number: int, folder: Path, tests: Sequence[str], jobs: Any, fates: Any, limit_s: float) -> None:
    """Judge mutations until there are no more, in a process of its own."""
    copy, scratch = folder / f"tree-{number}", folder / f"tmp-{number}"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=lambda at, _: _LEFT_OUT if at == str(ROOT) else ())
    scratch.mkdir()
    os.environ |= {"PYTHONPATH": str(copy), "TMPDIR": str(scratch)}
    os.chdir(copy)
    sys.path.insert(0, str(copy))
    with (folder / f"said-{number}").open("w") as said, contextlib.redirect_stdout(said):
        options = [*_OPTIONS, f"--basetemp={scratch}/tests", f"--limit-s={limit_s / 2:.0f}"]
        pytest.main([*options, *tests], plugins=[_Worker(jobs, fates, limit_s)])
    fates.put(None)


def judged(todo: Sequence[Job], limit_s: float) -> Iterator[Fate]:
    """Yield what comes of each, as it comes."""
    context = multiprocessing.get_context("fork")
    jobs, fates = context.Queue(), context.Queue()
    for job in (*todo, *[None] * _WORKERS):
        jobs.put(job)
    tests = sorted({test for job in todo for test in job.tests})
    with tempfile.TemporaryDirectory() as folder:
        settings = [(number, Path(folder), tests, jobs, fates, limit_s) for number in range(_WORKERS)]
        workers = [context.Process(target=_work, args=args) for args in settings]
        for worker in workers:
            worker.start()
        for _ in workers:
            yield from iter(fates.get, None)
        for worker in workers:
            worker.join()


def table(fates: Mapping[str, Sequence[Fate]], promises: Sequence[str]) -> Iterator[str]:
    """Yield a line for each promise, and one for all."""
    yield f"{'promise':10}{'mutations':>10}{'caught':>8}"
    for promise in promises:
        found = fates.get(promise, ())
        caught = sum(fate.state == "caught" for fate in found)
        yield f"{promise:10}" + (f"{len(found):>10}{caught:>8}" if found else "not tried: its tests need an engine")
    every = [fate for found in fates.values() for fate in found]
    yield f"{'all':10}{len(every):>10}{sum(fate.state == 'caught' for fate in every):>8}"


def main() -> int:
    """Print what is not caught as it is found, then the table; 1 where anything is not caught."""
    parser = argparse.ArgumentParser(description="break each promise of docs/security.md, and see whether a test fails")
    parser.add_argument("promises", nargs="*", metavar="PROMISE", help="such as S20; else all")
    parser.add_argument("--limit", type=float, default=60, help="seconds for the tests of one mutation")
    parser.add_argument("--verbose", action="store_true", help="also what is caught, and by which test")
    args = parser.parse_args()
    named = named_tests()
    if unknown := set(args.promises) - set(named):
        parser.error(f"not among the promises: {', '.join(sorted(unknown))}")
    promises = [promise for promise in named if promise in (args.promises or named)]
    load_profile()
    todo = [Job(promise, None, named[promise]) for promise in promises if named[promise]]
    every = [entry for entry in read_mutations() if entry.promise in promises and named[entry.promise]]
    todo += [Job(entry.promise, entry, named[entry.promise]) for entry in every]
    fates: dict[str, list[Fate]] = defaultdict(list)
    good = True
    for fate in judged(todo, args.limit):
        mutation = fate.job.mutation
        if mutation is not None:
            fates[mutation.promise].append(fate)
        good = good and fate.state == ("caught" if mutation else "not caught")
        if mutation is None and fate.state != "not caught":
            say(f"{fate.job.promise}: fails without a mutation: {fate.test} {fate.state}")
        elif mutation is not None and (args.verbose or fate.state != "caught"):
            say(f"{mutation.promise} {mutation.file}: {mutation.why}: {fate.state} {fate.test}")
    say("\n".join(table(fates, promises)))
    return int(not good or sum(map(len, fates.values())) != len(every))


if __name__ == "__main__":
    sys.exit(main())
