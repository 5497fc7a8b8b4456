"""The report if the engine cannot start a container of an image: the reason, the remedy, no claim about the image.

The engines are stand-ins: shell scripts that print what Apptainer 1.4.5 prints, and run commands on this machine.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lumiimg.check.probe.container import IN_IMAGE, Container, ProbePrograms
from lumiimg.check.run.execution import count_gpus
from lumiimg.cli.main import main
from lumiimg.core.errors import MissingHereError
from lumiimg.engine.engine import Engine, find_engine
from lumiimg.host import import_calls
from tests.shared import fabric_builder
from tests.shared.programs import needs
from tests.shared.validation import validated

Capture = pytest.CaptureFixture[str]

CAPABILITIES = (
    r"printf '\033[91mERROR  : Requesting capability set 0x000001ffffffffff while permitted capability set is "
    r"0x000001fffeffffff\n\033[0m'; exit 1"
)
UNKNOWN = r"printf '\033[31mFATAL:   \033[0mthe moon is full\n'; exit 255"
# the probe fails and says so in colours, and any other program runs
ONLY_PROBE = r"""case "$*" in *netprobe*) printf '\033[31mbad probe\033[0m\n'; exit 1 ;; esac"""
TOOLS = ProbePrograms(IN_IMAGE, (), "from the image")
WHY = "Apptainer 1.4.5 cannot start a container here: root lacks capabilities here"
ORDINARY = "run lumiimg as an ordinary user"


@pytest.fixture
def make_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Engine]:
    """Return a function that puts an engine on PATH which runs a script for `exec`."""

    def make(script: str) -> Engine:
        program = tmp_path / "bin" / "apptainer"
        program.parent.mkdir(exist_ok=True)
        versions = "case \"$*\" in --version) echo 'apptainer version 1.4.5'; exit ;; 'build --help') exit ;; esac"
        program.write_text(f"#!/bin/sh\n{versions}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return find_engine(os.environ)

    return make


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with a readable RCCL, a plugin, and empty probe programs."""
    root = fabric_builder.image(tmp_path / "image")
    for name in ("handshake", "rcclprobe"):
        (root / IN_IMAGE[1:]).mkdir(parents=True, exist_ok=True)
        (root / IN_IMAGE[1:] / name).write_text("stand-in")
    return root


@pytest.mark.parametrize(
    ("script", "why", "hint"),
    [(CAPABILITIES, "root lacks capabilities here", ORDINARY), (UNKNOWN, "FATAL: the moon is full", None)],
    ids=["known", "unknown"],
)
def test_a_probe_that_never_began_says_why_no_container_starts(
    make_engine: Callable[[str], Engine], tmp_path: Path, script: str, why: str, hint: str | None
) -> None:
    engine = make_engine(script)
    container = Container(engine, tmp_path / "x.sif", dict(os.environ), TOOLS)
    for probe in (
        lambda: container.rccl_probe("/lib/librccl.so.1"),
        lambda: container.handshake("librccl-net.so", rccl=None, accepts=()),
        lambda: container.run("ld.so", ["/lib64/ld.so", "--list", "/x.so"]),
        lambda: count_gpus(container, "/lib/librccl.so.1"),
    ):
        with pytest.raises(MissingHereError) as caught:
            probe()
        message = " ".join(str(caught.value).split())
        assert f"x.sif: Apptainer 1.4.5 cannot start a container here: {why}" in message
        assert (caught.value.hint or "").startswith(hint or "")
        assert (caught.value.hint is None) == (hint is None)
        assert "x1b" not in message


def test_a_probe_that_failed_in_a_container_is_no_fault_of_the_engine(
    make_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    engine = make_engine(ONLY_PROBE)
    run_of = Container(engine, tmp_path / "x.sif", dict(os.environ), TOOLS).rccl_probe("/lib/librccl.so.1")
    assert (run_of.exit_code, run_of.output) == (1, "bad probe\n"), "without the colours"
    engine = make_engine(ONLY_PROBE.replace("netprobe", "allreduce"))
    container = Container(engine, tmp_path, dict(os.environ), TOOLS)
    with pytest.raises(MissingHereError, match="HIP finds no GPU in the container: bad probe"):
        count_gpus(container, "/x")


def test_the_probe_level_is_not_done_where_nothing_was_started(
    make_engine: Callable[[str], Engine], image: Path, tmp_path: Path, capsys: Capture
) -> None:
    make_engine(CAPABILITIES)
    static = main(["check", str(image), "--level", "static"])
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert main(["check", str(image), "--json", "--html", str(page)]) == static, "the answer is that of the files"
    captured = capsys.readouterr()
    data = validated(captured.out, "check")
    assert data["level"] == "static"
    for level in ("probe", "run"):
        assert WHY in data["levels"][level]
        assert ORDINARY in data["levels"][level]
    assert not [finding for finding in data["findings"] if finding["level"] != "static"]
    for text in (captured.out, captured.err, page.read_text()):
        assert "Requesting capability" not in text
        assert "x1b" not in text
        assert "\x1b" not in text
    assert main(["check", str(image), "--level", "probe"]) == 4
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert WHY in err
    assert ORDINARY in err


# bench import

IN_CONTAINER = 'while [ "$1" != python3 ]; do shift; done; shift; exec {python} "$@"'


SCRIPTS = (
    (CAPABILITIES, 4, f"place.sif: {WHY}"),
    (UNKNOWN, 4, "cannot start a container here: FATAL:   the moon is full"),
    ("exit 255", 4, "cannot start a container here: it does not say why"),
    (IN_CONTAINER, 2, "`import nothing_of_that_name` fails there: ModuleNotFoundError"),
)


def test_a_container_that_does_not_start_is_no_module_that_is_not_there(
    make_engine: Callable[[str], Engine], tmp_path: Path, capsys: Capture
) -> None:
    needs("strace")
    place = tmp_path / "place.sif"
    place.write_bytes(b"an image")
    for script, code, words in SCRIPTS:
        make_engine(script.format(python=shlex.quote(sys.executable)) if "{python}" in script else script)
        assert main(["bench", "import", str(place), "--module", "nothing_of_that_name"]) == code, script
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
        assert "x1b" not in err


@pytest.mark.parametrize(
    ("no_program", "code", "words"),
    [
        ("echo 'FATAL:   stat /lumiimg-no-such-program: no such file or directory'", 0, "reaches it"),
        ("echo 'FATAL:   not setuid'", 3, "set-user-id (APPTAINER_USERNS=1 helps): FATAL: not setuid"),
    ],
    ids=["traced", "set-user-id"],
)
def test_what_an_engine_asks_of_an_image_is_counted_where_it_can_be_traced(
    make_engine: Callable[[str], Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    no_program: str,
    code: int,
    words: str,
) -> None:
    needs("strace")
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setattr(
        import_calls, "_bound_path_test", lambda _: lambda _: False
    )  # here everything is of this machine
    place = tmp_path / "place.sif"
    place.write_bytes(b"an image")
    given = f'read -r _ <{place}; case "$*" in *no-such-program) {no_program}; exit 255 ;; esac\n'
    make_engine(given + IN_CONTAINER.format(python=shlex.quote(sys.executable)))
    assert main(["bench", "import", str(place), "--module", "json", "--json"]) == code
    captured = capsys.readouterr()
    assert words in " ".join(captured.err.split())
    (counted,) = validated(captured.out, "bench-import")["places"]
    assert counted["program"]["opens"] > 0
    assert counted["shared"] is None if code else counted["shared"]["opens"] == 1, counted["shared"]
