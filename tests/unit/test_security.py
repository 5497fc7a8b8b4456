"""The promises of docs/security.md: each has its tests, and here are those that are tested nowhere else."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.build.progress import BuildLog
from lumiimg.catalog.layers import read_layer
from lumiimg.catalog.settings import ownership_problem, read_settings
from lumiimg.cli.main import main
from lumiimg.core.decode import DecodeError
from lumiimg.core.errors import BadInputError, ExitCode, LumiimgError, MissingHereError
from lumiimg.core.files import write_text
from lumiimg.core.redact import HIDDEN, has_key, is_secret_name, known_secrets, redact, without_secrets
from lumiimg.engine.engine import container_engines
from lumiimg.engine.process import run, which
from lumiimg.engine.workspace import scratch_folder, written_by_rename
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors, general_index, refuse_password
from lumiimg.image import ImageError, open_image
from lumiimg.image.host_files import HostFile
from lumiimg.joblog import files as log_sources
from lumiimg.joblog.lines import EVIDENCE_LIMIT, evidence_text, excerpt
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.loopback import Asked, listening
from tests.shared.programs import patient
from tests.shared.tls import certified

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).parents[2]


def test_each_promise_names_tests_that_are_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    promises = re.split(r"^\d+\. ", page.partition("## What is not promised")[0], flags=re.MULTILINE)[1:]
    assert len(promises) == 30
    lost = []
    for promise in promises:
        named = re.findall(r"`(tests/(?:unit|engine)/test_\w+\.py)::(test_\w+)`", promise)
        assert named, promise
        for file, name in named:
            path = ROOT / file
            if not path.exists() or not re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE):
                lost.append(f"{file}::{name}")
    assert lost == []


# ---- an image


@pytest.mark.threat
def test_a_sparse_file_of_an_image_costs_no_time_and_no_memory_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    image = fabric_builder.image(tmp_path / "image")
    for name in ("usr/lib64/librccl-net.so", "opt/rocm/lib/librccl.so.1", ".singularity.d/env/90-environment.sh"):
        os.truncate(image / name, 1 << 40)
    for name in ("lib64/libc.so.6", "lib64/ld-linux-x86-64.so.2"):
        os.truncate(image / name, 3 << 30)  # which a process of more memory could read
    for name in (".singularity.d/env/91-environment.sh", "opt/rocm/lib/libamdhip64.so.6"):
        os.mkfifo(image / name)
    # in a separate process with limited memory
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from lumiimg.cli.main import main; sys.exit(main(['check', sys.argv[1], '--level', 'static']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, image], capture_output=True, text=True, timeout=patient(60), check=False, cwd=ROOT
    )
    assert done.returncode in {1, 2, 3}, done.stderr


@pytest.mark.threat
def test_files_and_commands_of_an_image_are_read_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*words: object, **_: object) -> None:
        pytest.fail(f"a program was started: {words}")

    image = fabric_builder.image(tmp_path / "image")
    trap = tmp_path / "ran"
    for name in (".singularity.d/env/90-environment.sh", ".singularity.d/env/91-x.sh", ".singularity.d/runscript"):
        (image / name).write_text(f"#!/bin/sh\ntouch {trap}\nexport A=$(touch {trap}) B=`touch {trap}`\n")
        (image / name).chmod(0o755)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "system", refuse)
    assert main(["check", str(image), "--level", "static"]) in {0, 1, 3}
    assert main(["ldd", str(image), "--all"]) in {0, 1, 3}
    assert main(["explain", str(image)]) in {0, 1, 3}
    assert main(["show", str(image)]) in {0, 2}
    capsys.readouterr()
    assert not trap.exists()


@pytest.mark.threat
def test_an_image_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.sif"
    file.write_bytes(b"x" * 4096)
    source = HostFile.from_image(file)
    os.truncate(file, 10)
    with pytest.raises(ImageError, match="became shorter"):
        source.read_at(0, 4096)
    source.close()
    root = fabric_builder.image(tmp_path / "image")
    with open_image(root) as image:
        assert image.root.is_dir("/etc")
        (root / "etc").rmdir()
        (root / "etc").symlink_to("/etc")  # of the image, which leads to itself; not this machine's
        with pytest.raises(OSError, match="etc"):
            image.root.read_bytes("/etc/hostname", 1 << 20)


# ---- a log


@pytest.mark.threat
def test_a_compressed_log_may_not_ask_for_more_memory_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, text = tmp_path / "log", b"n1:1:1 [0] NCCL INFO Using network Socket\n" * 3
    parts = [lzma.compress(text), lzma.compress(b"", preset=0), lzma.compress(text)]
    log.write_bytes(parts[0] + b"\0" * 8 + parts[1] + parts[2])
    assert b"".join(log_sources.blocks(str(log), print)) == text * 2
    with monkeypatch.context() as patch:
        patch.setattr(log_sources, "XZ_MEMORY_BYTES", 1 << 20)  # what xz -6 wants is 9 MiB
        with pytest.raises(BadInputError, match="cannot be unpacked"):
            list(log_sources.blocks(str(log), print))
    for packed in (gzip.compress(b"\0" * (64 << 20)), lzma.compress(b"\0" * (64 << 20), preset=0)):
        log.write_bytes(packed)
        tracemalloc.start()
        try:
            assert all(len(block) <= 1 << 21 for block in log_sources.blocks(str(log), print))
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


# ---- servers


@pytest.mark.threat
def test_a_server_whose_certificate_nobody_vouches_for_is_not_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.fetch.http._ATTEMPTS", 0)  # one is like the other
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    asked: list[Asked] = []
    with listening(asked.append, certified()) as url, pytest.raises(LumiimgError, match="certificate"):
        Http().get(f"{url}/", limit_bytes=10)
    assert asked == []


# ---- a layer's folder


@pytest.mark.parametrize("file", ["post.sh", "test.sh", "data.txt"])
@pytest.mark.threat
def test_a_layer_brings_no_file_of_the_user_along(
    tmp_path: Path, layers: Path, make_layer: MakeLayer, file: str
) -> None:
    key = tmp_path / ".ssh" / "id_rsa"
    key.parent.mkdir()
    key.write_text("the key")
    evil = make_layer("evil", LAYER + 'files = ["data.txt"]\n', data_txt="x", test_sh="true\n")
    make_layer("shared", post="true\n", data_txt="x", test_sh="true\n")
    (evil / file).rename(evil / "own")
    for target in (key, Path("../../.ssh/id_rsa"), Path(f"../shared/{file}"), evil / "own"):
        (evil / file).symlink_to(target)
        with pytest.raises(DecodeError, match="is a link"):
            read_layer(evil)
        (evil / file).unlink()
    (evil / "own").rename(evil / file)
    (layers / "lib").symlink_to(key.parent)
    (evil / "layer.toml").write_text(LAYER + 'files = ["data.txt"]\nlib = ["id_rsa"]\n')
    with pytest.raises(DecodeError, match="id_rsa of `lib` is reached through a link"):
        read_layer(evil)
    (layers / "lib").unlink()
    (evil / "layer.toml").write_text(LAYER + 'files = ["data.txt"]\n')
    (layers.parent / "here").symlink_to(layers)
    assert read_layer(layers.parent / "here" / "evil").name == "evil"


@pytest.mark.threat
def test_nothing_of_a_layer_runs_before_it_is_built(
    tmp_path: Path,
    layers: Path,
    make_layer: MakeLayer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clean_home: Path,
) -> None:
    del clean_home
    trap = tmp_path / "ran"
    name = f"$(touch {trap})"
    make_layer("a", BASE, post=f"touch {trap}\n")
    make_layer(
        "b",
        LAYER + f'[arguments.FLAGS]\ndefault = "{name}"\nhelp = "`touch {trap}`"\n[environment.set]\nX = "{name}"\n',
        post=f"touch {trap}\n",
        test_sh=f"touch {trap}\n",
    )
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: pytest.fail(f"a program was started: {words}"))
    where = ["--layers", str(layers)]
    stack = ["--base", "a", "--add", "b"]
    for words in (["list"], ["show", "b"], ["explain", *stack], ["build", *stack, "--dry-run"]):
        assert main([*words, *where]) in {0, 1}
    assert main(["build", *stack, "--definitions", str(tmp_path / "defs"), *where]) == 0
    capsys.readouterr()
    assert not trap.exists()


# ---- a neighbour on a shared file system


@pytest.mark.threat
def test_no_link_that_a_neighbour_has_laid_is_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    target = tmp_path / "result.txt"
    # under every predictable name
    for name in (f".result.txt.{os.getpid()}", ".result.txt.0000000000000000", f".result.txt.{os.getpid()}.tmp"):
        (tmp_path / name).symlink_to(precious)
    write_text(target, "text")
    assert (target.read_text(), precious.read_text()) == ("text", "mine")
    monkeypatch.setattr("os.urandom", bytes)
    with pytest.raises(LumiimgError):
        write_text(target, "other")
    assert (target.read_text(), precious.read_text()) == ("text", "mine")
    assert target.stat().st_mode & 0o777 == 0o666 & ~_umask()


@pytest.mark.threat
def test_a_link_of_somebody_else_in_the_place_of_a_result_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "over").symlink_to("precious")
    (tmp_path / "result").symlink_to(tmp_path / "over")
    write_text(tmp_path / "result", "by my own links")
    assert precious.read_text() == "by my own links"
    assert (tmp_path / "result").is_symlink()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(BadInputError, match="circle"):
        write_text(tmp_path / "circle", "text")
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    if mine == 0:  # links of root are trusted
        for link in (tmp_path / "over", tmp_path / "result"):
            os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(BadInputError, match="another user"):
        write_text(tmp_path / "result", "theirs")
    assert precious.read_text() == "by my own links"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.threat
def test_what_is_built_grows_where_only_its_user_can_write_and_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    names = set()
    for _ in range(2):
        with written_by_rename(tmp_path / "x.sif") as partial:
            names.add(partial.parents[1].name)
            assert {stat.S_IMODE(folder.stat().st_mode) for folder in partial.parents[:2]} == {0o700}
            partial.write_text("whole")
    assert len(names) == 2, "no name is used twice"
    assert [path.name for path in tmp_path.iterdir()] == ["x.sif"]
    with contextlib.suppress(RuntimeError), written_by_rename(tmp_path / "y.sif") as partial:
        partial.write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["x.sif"], "what is not finished is never under its name"
    with scratch_folder(tmp_path) as scratch:
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in (scratch, scratch.parent)} == {0o700}


@pytest.mark.parametrize("kind", [Path.symlink_to, Path.hardlink_to])
@pytest.mark.threat
def test_the_log_of_a_build_is_a_new_file(tmp_path: Path, kind: Callable[[Path, Path], None]) -> None:
    precious = tmp_path / "precious"
    precious.write_text("")  # what a log may be written over: it is empty
    kind(tmp_path / "x.sif.log", precious)
    with BuildLog(tmp_path / "x.sif.log") as log:
        log.write(b"== text\n")
    assert precious.read_text() == ""
    assert (tmp_path / "x.sif.log").read_text() == "== text\n"


@pytest.mark.threat
def test_a_cache_that_is_named_is_made_for_its_user_alone_and_one_of_others_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o007)  # as on LUMI
    try:
        cache = read_settings({"LUMIIMG_CACHE": str(tmp_path / "a" / "cache"), "HOME": str(tmp_path)}).cache
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert ownership_problem(cache) is None
    assert ownership_problem(tmp_path / "nowhere") is None
    cache.chmod(0o770)
    assert ownership_problem(cache) == "can be written by others"
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert ownership_problem(cache) == "belongs to another user"


@pytest.mark.parametrize("kind", ["link", "another user's", "own"])
@pytest.mark.threat
def test_the_folder_of_a_job_is_the_users_own(tmp_path: Path, kind: str) -> None:
    """An existing folder of that name is not used: a job makes a new one."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "nccl").mkdir(parents=True)
    folder = tmp_path / "lumiimg-7"
    if kind == "link":
        folder.symlink_to(elsewhere)
    else:
        (folder / "nccl" / "mine").mkdir(parents=True)
        folder.chmod(0o777)
    text = (ROOT / "lumiimg" / "cluster" / "job" / "job.sh").read_text()
    (lines,) = re.findall(r"^export LUMIIMG_JOB=.*?(?=^trap)", text.replace("@NUMBER@", "7"), re.MULTILINE | re.DOTALL)
    script = f'umask 0\n{lines}\necho "$LUMIIMG_JOB"'
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    made = Path(done.stdout.strip())
    assert made.parent == tmp_path
    assert made != folder
    assert [path.name for path in made.rglob("*")] == ["nccl"]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o022 for path in (made, made / "nccl")} == {0}
    assert not [*(elsewhere / "nccl").iterdir()]
    # if somebody creates the new one meanwhile, or a dangling link, the job ends
    shutil.rmtree(folder, ignore_errors=True) if kind != "link" else folder.unlink()
    folder.symlink_to(tmp_path / "nowhere")
    done = subprocess.run(["bash", "-eu", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


# ---- the environment of lumiimg's own processes


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with programs and modules planted by somebody."""
    folder = tmp_path / "unpacked"
    (folder / "lumiimg" / "build").mkdir(parents=True)
    for module in ("pip", "json", "tarfile", "lumiimg/__init__", "lumiimg/build/__init__", "lumiimg/build/inside"):
        (folder / f"{module}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for program in ("apptainer", "singularity", "mksquashfs", "unshare", "gcc", "scontrol", "true"):
        (folder / program).write_text(f"#!/bin/sh\n: >'{tmp_path / 'ran'}'\n")
        (folder / program).chmod(0o755)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("path", ["", ".", ":/nowhere", "/nowhere:", "/nowhere::.", "../unpacked"])
@pytest.mark.threat
def test_programs_of_the_current_folder_are_not_run(
    hostile_folder: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert which("apptainer", path) is None
    with pytest.raises(MissingHereError):
        next(container_engines({"PATH": path}))
    run(["true"], env={"PATH": f"{path}:/usr/bin"})
    with contextlib.suppress(MissingHereError):
        run(["true"], env={"PATH": path})
    seen = run(["/usr/bin/env"], env={"PATH": f"/usr/bin:{path}:/bin"})
    assert "PATH=/usr/bin:" in seen.output
    assert all(folder.startswith("/") for folder in re.findall("PATH=(.*)", seen.output)[0].split(":"))
    del hostile_folder, monkeypatch
    assert not (tmp_path / "ran").exists()


@pytest.mark.threat
def test_python_modules_of_the_current_folder_are_not_run(hostile_folder: Path, tmp_path: Path) -> None:
    from lumiimg.build.layer_build import HELPER

    del hostile_folder
    general_index(Mirrors({}))
    done = run([*HELPER, "list", tmp_path, tmp_path / "list.json"], env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"})
    assert done.ok, done.output
    assert not (tmp_path / "ran").exists()


@pytest.mark.threat
def test_no_child_has_a_secret_and_those_of_launchers_and_engines_stay() -> None:
    secrets = {
        "HF_TOKEN": "canary",
        "MY_PASSWORD": "canary",
        "AWS_SECRET_ACCESS_KEY": "canary",
        "WANDB_API_KEY": "canary",
        "DOCKER_AUTH_CONFIG": "canary",
        "APPTAINERENV_HF_TOKEN": "canary",
        "GITHUB_PAT": "canary",
        "SSHPASS": "canary",
        "DB_PASS": "canary",
        "MYSQL_PWD": "canary",
    }
    kept = {"PMI_SHARED_SECRET": "1", "SLURM_JWT": "1", "APPTAINER_DOCKER_PASSWORD": "1", "TOKENIZERS_PARALLELISM": "1"}
    seen = run(["/usr/bin/env"], env={"PATH": "/usr/bin", **secrets, **kept})
    assert "canary" not in seen.output
    for name in kept:
        assert f"{name}=1\n" in seen.output
    assert without_secrets(kept) == kept
    assert is_secret_name("APPTAINER_DOCKER_PASSWORD"), "the engine logs in with it; nobody else has it or prints it"
    assert not any(
        map(
            is_secret_name,
            ("PATH", "MAX_TOKENS", "KEYBOARD", "PWD", "OLDPWD", "SSH_AUTH_SOCK", "XDG_SEAT", "NCCL_BYPASS"),
        )
    )


# ---- secrets


TOKEN = "hf_" + "aB3" * 10


@pytest.mark.parametrize(
    ("where", "entry", "value"),
    [
        ("set", 'WANDB_API_KEY = "0123456789"', "0123456789"),
        ("set", 'INDEX = "https://me:hunter2@host.test/simple"', "hunter2"),
        ("prepend", f'SEARCH = "{TOKEN}"', TOKEN),
        ("set", 'INDEX = "https://{WHO}@host.test/simple"', "nobody"),
    ],
)
@pytest.mark.threat
def test_a_variable_of_a_layer_that_looks_like_a_secret_is_refused_and_not_repeated(
    where: str,
    entry: str,
    value: str,
    make_layer: MakeLayer,
    layers: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_layer("a", BASE)
    make_layer("b", LAYER + f'[arguments.WHO]\ndefault = "nobody"\nhelp = "text"\n[environment.{where}]\n{entry}\n')
    words = ["--base", "a", "--add", "b", "--layers", str(layers)]
    for command in (["lock", "-o", str(tmp_path / "x.lock")], ["build", "--dry-run"]):
        assert main([command[0], *words, *command[1:]]) == ExitCode.BAD_INPUT
        message = capsys.readouterr().err
        assert f"b/layer.toml: {entry.partition(' ')[0]} in [environment] looks like a secret" in message
        assert "in the job that runs the image" in message
        assert value not in message
    assert not (tmp_path / "x.lock").exists()


@pytest.mark.threat
def test_an_address_with_a_login_or_a_key_is_refused_and_not_repeated() -> None:
    refuse_password("https://host/file?version=1", "--source x")
    for address in (
        "https://host/file?X-Amz-Signature=abcd&a=b",
        "https://host/file?token=abcd",
        "https://host/file?a=b&sig=abcd",
        "https://me:abcd@host/file",
        "https://me:ab/cd@host/file",
        "https://me@host/file",
    ):
        with pytest.raises(BadInputError) as caught:
            refuse_password(address, "--source x")
        assert not {"abcd", "ab/cd", "me"} & set(re.split(r"[^\w/]+", str(caught.value))), address
        assert has_key(address) or "@" in address


SLOW = (
    *("token", "_", "-", "--a ", ":", "=", "'", '"', "\\'", "[", "?", "&", "%3D", "%3A%2F%2F", "http://a:", "@", "a.-"),
    *(
        "SECRET_",
        "_PASSWORD_",
        "KEY",
        "pass",
        "Bearer ",
        '"auth',
        "eyJ-",
        "eyJ%40",
        "-----BEGIN PRIVATE KEY",
        "ENV ",
        "a%3Db=",
    ),
)


def test_a_text_made_to_be_slow_is_not_slow() -> None:
    assert redact("eyJ-" * 50_000) == "eyJ-" * 50_000
    for piece in SLOW:
        text = "%3D " + piece * (10_000 // len(piece))
        began = time.process_time()
        redact(text)
        assert time.process_time() - began < patient(0.25), piece  # what grows with the square takes half a second


@pytest.mark.threat
def test_the_log_of_a_build_has_no_secret_that_is_known_or_looks_like_one(tmp_path: Path) -> None:
    environment = {
        "http_proxy": "http://me:hunter2hunter2@proxy:3128",
        "APPTAINER_DOCKER_PASSWORD": "my-docker-word",
        "ODD_TOKEN": "nothing-known",
        "PATH": "/usr/bin",
    }
    with BuildLog(tmp_path / "log", known_secrets(environment)) as log:
        for chunk in (
            b"http_proxy=http://me:hun",
            b"ter2hunter2@proxy:3128\nword my-docker-",
            b"word\nnothing-",
            b"known",
        ):
            log.write(chunk)
        log.flush()
        log.write(b"\nthe proxy refuses hunter2hunter2\n")
        log.write(f" {TOKEN}\nbytes \xff ".encode("latin-1") + b"x" * 200_000)
        log.write(b"\nhttps://you:other-word@host/simple\n")
    text = (tmp_path / "log").read_bytes()
    for secret in (b"hunter2", b"my-docker-word", b"nothing-known", TOKEN.encode(), b"other-word"):
        assert secret not in text
    assert b"bytes \xff xxx" in text, "all else is as it was printed"
    assert text.count(b"x" * 200_000) == 1
    assert io.BytesIO(text).readline() == b"http_proxy=http://[hidden]@proxy:3128\n"
    assert redact(TOKEN) != TOKEN


@pytest.mark.threat
def test_a_token_in_a_proof_is_hidden_also_where_the_proof_is_cut_in_its_middle() -> None:
    line = f"NCCL INFO Using network Socket {TOKEN}"
    assert evidence_text(excerpt(line, (0, 9))) == f"NCCL INFO Using network Socket {HIDDEN}"
    assert TOKEN[:8] not in evidence_text(excerpt(f"{'x' * (EVIDENCE_LIMIT - 12)} {TOKEN}", (0, 9)))
