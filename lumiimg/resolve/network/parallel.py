"""Several things at once, in threads: the first that fails ends all, and Ctrl-C ends them promptly."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

_K = TypeVar("_K")
_T = TypeVar("_T")
_GRACE_S = 1.0
"""For those that run, to leave what they have in order. One that hears nothing until its server speaks again is left
behind: its thread ends with the process."""


@dataclass(frozen=True, slots=True)
class _Done(Generic[_K, _T]):
    name: _K
    result: _T


def at_once(
    tasks: Mapping[_K, Callable[[Callable[[str], None]], _T]],
    jobs: int,
    *,
    on_line: Callable[[str], None],
    stop: Callable[[], None],
) -> dict[_K, _T]:
    """Return what each task returns; up to `jobs` run at a time.

    A task is called with what it may tell a line to, which reaches `on_line` in the thread of the caller. When one
    fails, or something is raised in the caller's thread (Ctrl-C), no other begins, `stop` is called for those that run,
    and that error is raised.
    """
    todo: queue.SimpleQueue[tuple[_K, Callable[[Callable[[str], None]], _T]]] = queue.SimpleQueue()
    for task in tasks.items():
        todo.put(task)
    heard: queue.SimpleQueue[str | _Done[_K, _T] | BaseException] = queue.SimpleQueue()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                name, task = todo.get_nowait()
            except queue.Empty:
                return
            try:
                heard.put(_Done(name, task(heard.put)))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                ended.set()
                heard.put(error)

    # not a pool of concurrent.futures, which is waited for when the process ends
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(tasks)))]
    results: dict[_K, _T] = {}
    try:
        for thread in threads:
            thread.start()
        while len(results) < len(tasks):
            told = heard.get()
            if isinstance(told, BaseException):
                raise told  # noqa: TRY301 - an error is an error, whichever thread it is of
            if isinstance(told, _Done):
                results[told.name] = told.result
            else:
                on_line(told)
    except BaseException:
        ended.set()
        stop()
        until = time.monotonic() + _GRACE_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        raise
    return {name: results[name] for name in tasks}
