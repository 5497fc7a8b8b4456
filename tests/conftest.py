"""Options of the test run, and two rules: CI skips nothing, and all JSON output matches its schema."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

from lumiimg.catalog import layers, sites
from lumiimg.catalog.folders import shipped_layers
from tests.shared.programs import EVERYTHING
from tests.shared.proposals import proposals_are_typed, sentences_are_whole
from tests.shared.validation import outputs_validated

MAY_BE_ABSENT = "not beside this checkout"
"""Reason of the only skip that CI allows: optional material that few checkouts have."""


def pytest_configure() -> None:
    # tests are judged for no particular machine unless they name one
    os.environ["LUMIIMG_SITE"] = "generic"
    # a shell without job control starts background processes with SIGINT ignored, and the programs that tests
    # interrupt would inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # nohup ignores SIGHUP, and programs started here would inherit that: those that a test hangs up would never end
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")
    parser.addoption("--limit-s", type=int, default=300, help="for a test of a promise: one that waits for ever fails")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if EVERYTHING or item.get_closest_marker("everything") is None]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_collection_finish() -> None:
    # several hundred thousand objects live until the end: the collector need not traverse them again and again
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MAY_BE_ABSENT not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, and CI must not skip: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("threat") is None or item.get_closest_marker("engine") is not None:
        return (yield)
    limit_s = item.config.getoption("--limit-s")
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"did not end within {limit_s} s"))
    signal.alarm(limit_s)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", autouse=True)
def _outputs_are_of_their_schemas() -> Generator[None]:
    with outputs_validated():
        yield


@pytest.fixture(scope="session", autouse=True)
def _proposals_are_typed() -> Generator[None]:
    with proposals_are_typed(), sentences_are_whole():
        yield


@pytest.fixture(scope="session", autouse=True)
def _shipped_layers_and_sites_are_read_once() -> Generator[None]:
    """They do not change while tests run, and reading them took half the time of commands here."""
    layer_once, site_once = cache(layers.read_layer), cache(sites.read_site)
    folders = {shipped_layers(), Path(sites.__file__).with_name("sites")}
    read_layer, read_site = layers.read_layer, sites.read_site

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "lumiimg.catalog.catalogue.read_layer",
            lambda one: (layer_once if one.parent in folders else read_layer)(one),
        )
        patch.setattr(sites, "read_site", lambda one: (site_once if one.parent in folders else read_site)(one))
        yield
