"""The `--html` pages in a real browser: they are displayed, request and run nothing, and fit a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.report.page import to_page
from tests.engine.conftest import lumiimg
from tests.shared import answers, fabric_builder, pages
from tests.shared.browser import Browser, browser, program

pytestmark = pytest.mark.engine
SCRIPT = "<script>window.ran = 1; alert(1); fetch('http://127.0.0.1:9/')</script>"
EVENTS = "<img src=x onerror=\"window.ran = 1; alert(2)\"><svg onload=alert(3)><a href='javascript:alert(4)'>x</a>"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("no Chromium on PATH")
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    pages.pages(folder, tmp_path_factory.mktemp("work"))
    for name, document in answers.DOCUMENTS.items():
        (folder / f"answer-{name}.html").write_text(to_page(document))
    return folder


def judge(one: Browser, page: Path) -> None:
    """Assert that a page was displayed and did nothing else."""
    assert one.complaints() == []
    assert one.dialogs() == []
    assert one.requests() == [page.as_uri()]
    assert one.ask("document.querySelectorAll('script').length") == 0
    assert one.ask("typeof window.ran") == "undefined"
    assert one.ask("document.querySelector('h1').getBoundingClientRect().height") > 20


def test_each_page_shows_in_light_dark_print_and_on_a_narrow_screen(chromium: Browser, folder: Path) -> None:
    for page in sorted(folder.glob("*.html")):
        for kind, width in (("light", 1400), ("dark", 1200), ("print", 1000), ("tablet", 800), ("narrow", 360)):
            chromium.open(page, width=width, dark=kind == "dark", printed=kind == "print")
            judge(chromium, page)
            # the style sheet is applied, and nothing needs horizontal scrolling, whether opened or not
            chromium.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert chromium.ask("document.documentElement.scrollWidth") <= width, (page.name, kind)
            background = chromium.ask("getComputedStyle(document.documentElement).backgroundColor")
            assert background == ("rgb(16, 21, 27)" if kind == "dark" else "rgb(255, 255, 255)")
            # the boxes of a path are side by side, or one below the other
            heights = chromium.ask("[...document.querySelectorAll('.path')].map(one => one.offsetHeight)")
            assert all((height < 450) == (width > 900) for height in heights), (page.name, kind, heights)


def test_foreign_text_runs_nothing_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    log = tmp_path / "hostile.log"
    lines = [
        f"n1:7:7 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : {text}: cannot open shared object file : when loading {text}"
        for text in (SCRIPT, EVENTS, f"</style>{SCRIPT}", f"--> ]]> </title>{SCRIPT}")
    ]
    lines += [
        f"n1:7:7 [0] NCCL INFO NCCL_NET_PLUGIN set by environment to {SCRIPT}",
        f"{EVENTS}:7:7 [0] NCCL INFO Using network Socket",
    ]
    log.write_text("\n".join(lines))
    page = pages.written(tmp_path, "log", "log", log)
    chromium.open(page)
    judge(chromium, page)
    chromium.ask("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert SCRIPT in chromium.ask("document.body.innerText")
    image = fabric_builder.image(tmp_path / "<img src=x onerror=alert(1)>", plugin=False)
    page = pages.written(tmp_path, "check", "check", image, "--level", "static")
    chromium.open(page)
    judge(chromium, page)


def test_the_policy_of_a_page_would_stop_what_escaping_had_missed(
    chromium: Browser, folder: Path, tmp_path: Path
) -> None:
    text = (folder / "check-no.html").read_text()
    page = tmp_path / "spoiled.html"
    page.write_text(text.replace("<main>", f"<main>{SCRIPT}{EVENTS}<style>body {{ display: none }}</style>"))
    chromium.open(page)
    assert chromium.ask("typeof window.ran") == "undefined"
    assert chromium.dialogs() == []
    assert chromium.ask("getComputedStyle(document.body).display") == "block"
    assert any("Content Security Policy" in str(complaint) for complaint in chromium.complaints())


def test_findings_open_by_the_keyboard_and_show_where_the_focus_is(chromium: Browser, folder: Path) -> None:
    chromium.open(folder / "check-no.html")
    closed = "[...document.querySelectorAll('details')].filter(one => !one.open).length"
    before = chromium.ask(closed)
    assert before > 0
    for _ in range(20):
        for kind in ("keyDown", "keyUp"):
            chromium.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        if chromium.ask("document.activeElement.matches('details:not([open]) > summary')"):
            break
    assert chromium.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    chromium.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
    )
    chromium.call("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert chromium.ask(closed) == before - 1


def test_the_page_of_a_real_check_names_what_was_seen_and_no_more(
    chromium: Browser, with_plugin: Path, tmp_path: Path
) -> None:
    page, junit = tmp_path / "check.html", tmp_path / "check.xml"
    result = lumiimg("check", with_plugin, "--html", page, "--junit", junit)
    assert result.code == 3, result.err
    assert 'failures="0"' in junit.read_text()
    chromium.open(page)
    judge(chromium, page)
    states = chromium.ask("[...document.querySelectorAll('.step')].map(one => one.getAttribute('class'))")
    assert states[:3] == ["step ok"] * 3  # opened, with the image's own libfabric
    assert "step ok" not in states[3:]  # on a machine without Slingshot
    assert "holds (probe)" in chromium.ask("document.querySelectorAll('.step')[2].innerText")
