"""Any file in the place of one that a command reads: an answer, or one line, and nothing is waited for."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.errors import BadInputError, ExitCode
from lumiimg.nccl import sources
from tests.shared.programs import sampled

LINE = b"n1:1:1 [0] NCCL INFO Using network Socket\n"
TERABYTES = 4 << 40
VERBS = {
    "log": ("log", "FILE"),
    "log --follow": ("log", "--follow", "FILE"),
    "check": ("check", "FILE", "--level", "static"),
    "ldd": ("ldd", "FILE", "--all"),
    "show": ("show", "FILE"),
    "rebuild": ("rebuild", "FILE", "-o", "new.sif"),
    "bind": ("bind", "image", "--host", "FILE"),
    "diff": ("diff", "FILE", "image"),
    "draft": ("draft", "FILE"),
    "build --lock": ("build", "--locked", "--lock", "FILE", "--dry-run"),
}
_CHILD = """
import os, resource, signal, sys
from lumiimg.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
name, verbs = sys.argv[1], eval(sys.argv[2])
for verb, words in verbs.items():
    signal.alarm(20)
    print("verb", verb, file=sys.stderr)
    code = main([word.replace("./FILE", os.path.join(".", name)).replace("FILE", name) for word in words])
    print("code", int(code), file=sys.stderr, flush=True)
"""


def laid(folder: Path) -> None:
    (folder / "image/bin").mkdir(parents=True)
    (folder / "job.out").write_bytes(LINE)
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", TERABYTES)
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("name", ["pipe", *sampled(["/dev/zero", "sparse", "socket", "/proc/self/pagemap"], 1)])
@pytest.mark.usefixtures("clean_home")
@pytest.mark.threat
def test_no_verb_waits_for_a_file_or_reads_it_without_end(name: str, tmp_path: Path) -> None:
    laid(tmp_path)
    follows = {"log --follow"} if name in {"sparse", "/proc/self/pagemap"} else set()  # until Ctrl-C
    verbs = {
        verb: words for verb, words in VERBS.items() if verb not in follows | ({"log"} if name == "pipe" else set())
    }
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, name, repr(verbs)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    told = [part.splitlines() for part in child.stderr.split("verb ")[1:]]
    assert child.returncode == 0, f"{name}: {told[-1] if told else child.stderr}"
    assert [lines[0] for lines in told] == list(verbs)
    for verb, *lines, code in told:
        if verb == "log" and name == "sparse":
            assert code == f"code {ExitCode.UNDECIDED:d}", lines
        else:
            assert code == f"code {ExitCode.BAD_INPUT:d}", (name, verb, lines)
        assert len(lines) <= 1, (name, verb, lines)


@pytest.mark.threat
def test_a_stream_in_which_no_line_ends_is_left_with_a_message() -> None:
    with Path("/dev/zero").open("rb") as zeros:
        child = subprocess.run(
            [sys.executable, "-m", "lumiimg", "log", "-"],
            stdin=zeros,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert child.returncode == ExitCode.BAD_INPUT
    assert child.stderr == "lumiimg: -: has no line end in 1024 MiB, so it is not a log\n"


@pytest.mark.threat
def test_lines_longer_than_any_are_no_endless_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ENDLESS_BYTES", 1 << 20)
    (tmp_path / "a").write_bytes((b"x" * 900_000 + b"\n") * 3 + LINE)
    assert b"".join(sources.blocks(str(tmp_path / "a"), print)).endswith(LINE)
    (tmp_path / "b").write_bytes(b"x" * 2_000_000 + LINE)
    with pytest.raises(BadInputError, match="has no line end in 1 MiB"):
        list(sources.blocks(str(tmp_path / "b"), print))


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A sandbox with folders 1,500 deep."""
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    (image / "bin/sh").touch()
    monkeypatch.chdir(image)
    try:
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        os.chdir(tmp_path)
        yield image
    finally:
        subprocess.run(["rm", "-rf", image], check=True, cwd=tmp_path)  # shutil.rmtree would recurse as deep


@pytest.mark.usefixtures("clean_home", "deep")
@pytest.mark.threat
def test_folders_thousands_deep_are_an_answer_or_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    for words in (
        ("check", "image", "--level", "static"),
        ("explain", "./image"),
        ("ldd", "image", "--all"),
        ("diff", "image", "image"),
        ("lock", "--base", "./image"),
    ):
        assert main(list(words)) in set(ExitCode), words
        error = capsys.readouterr().err
        assert error.count("\n") <= 1, words
        assert len(error) < 400, words
    assert time.process_time() - start < 20
