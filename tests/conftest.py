"""Options of the test run, the rule that CI skips nothing, and that whatever is printed as JSON is of its schema."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.shared.validation import outputs_validated

if TYPE_CHECKING:
    from collections.abc import Generator

MAY_BE_ABSENT = "not beside this checkout"
"""Of a skip that CI allows: material that a test uses where somebody has it."""


def pytest_configure() -> None:
    # a shell without job control starts what is in the background with Ctrl-C ignored, and so would be the programs
    # that tests interrupt
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # nohup has hangups ignored, and programs started here would inherit it: those that a test hangs up would never end
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; read the diff")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MAY_BE_ABSENT not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, and CI must not skip: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _outputs_are_of_their_schemas() -> Generator[None]:
    with outputs_validated():
        yield
