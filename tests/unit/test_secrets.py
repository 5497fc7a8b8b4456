"""A user's secrets, in all usual places: none appears in anything that lumiimg writes or prints without an engine."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.cli.main import main
from lumiimg.core.redact import secrets_here
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.world import World, serve

BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39" }\n[[', 1)
SNAKE = (
    LAYER
    + '[[release]]\nversion = "2.0"\nwheels = ["snake==2.0+rocm6.4"]\nsource = "the tests"\n'
    + 'indexes = ["https://download.pytorch.org/whl/rocm6.4"]\n[sources.tool]\nkey = "1"\nfile = "tool.tar.gz"\n'
    + 'url = "https://github.com/x/tool/archive/v1.tar.gz"\nsource = "the tests"\n'
)
LOG = "n1:1:1 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so.\nn1:1:1 [0] NCCL INFO Using network Socket\n"


class Canaries:
    """Words that occur nowhere else."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        self.words[name] = f"Canary{len(self.words):02}of{name.replace('_', '')}"
        return self.words[name]

    def found_in(self, data: bytes) -> list[str]:
        return [name for name, word in self.words.items() if word.encode() in data]


@pytest.fixture
def canaries(clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canaries]:
    """Secrets in the environment and in the home, in their usual places."""
    canary = Canaries()
    for name in ("HF_TOKEN", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PMI_SHARED_SECRET", "SLURM_JWT"):
        monkeypatch.setenv(name, canary(name))
    for name in ("SSHPASS", "DB_PASS", "MYSQL_PWD"):
        monkeypatch.setenv(name, canary(name))
    for name in ("APPTAINER_DOCKER_PASSWORD", "SINGULARITY_DOCKER_PASSWORD", "APPTAINERENV_HF_TOKEN", "SLINGSHOT_VNIS"):
        monkeypatch.setenv(name, canary(name))
    monkeypatch.setenv("APPTAINER_ENCRYPTION_PASSPHRASE", canary("passphrase"))
    monkeypatch.setenv("https_proxy", f"http://me:{canary('proxy')}@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{clean_home}/{canary('path')}")
    (clean_home / ".netrc").write_text(f"machine 127.0.0.1 login me password {canary('netrc')}\n")
    monkeypatch.setenv("NETRC", str(clean_home / ".netrc"))
    login = base64.b64encode(f"me:{canary('docker_config')}".encode()).decode()
    canary.words["docker_config_as_it_is"] = login
    (clean_home / ".docker").mkdir()
    (clean_home / ".docker" / "config.json").write_text(json.dumps({"auths": {"127.0.0.1": {"auth": login}}}))
    (clean_home / ".ssh").mkdir()
    (clean_home / ".ssh" / "id_ed25519").write_text(canary("ssh"))
    secrets_here.cache_clear()
    yield canary
    secrets_here.cache_clear()


@pytest.fixture
def world() -> Iterator[World]:
    with serve(World(of_layers={"snake": {"2.0+rocm6.4": ("egg",)}}, wheels={"egg": {"1.0": ()}})) as found:
        yield found


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.threat
def test_no_secret_is_in_any_file_or_stream(
    canaries: Canaries,
    world: World,
    tmp_path: Path,
    layers: Path,
    make_layer: MakeLayer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    as_json: bool,
) -> None:
    make_layer("box", BOX)
    make_layer("snake", SNAKE)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("LUMIIMG_CACHE", str(work / "cache"))
    monkeypatch.setattr("lumiimg.fetch.connection._PAUSE_S", 0.0)
    image = fabric_builder.image(tmp_path / "image")
    with open_image(fabric_builder.host(tmp_path / "host")) as opened:
        write_snapshot(scan_host(os.environ, root=opened.root), work / "host.json")
    (work / "job.log").write_text(LOG)
    stack = ["--base", "box", "--add", "snake", "--layers", str(layers)]
    (work / "Dockerfile").write_text(
        f"FROM a\nENV A_TOKEN={canaries('env')} B=https://me:{canaries('url')}@host.test\n"
    )
    make_layer("telling", f'{LAYER}[environment.set]\nMY_API_KEY = "{canaries("layer")}"\n')
    host, login, key = ["--host", "host.json"], canaries("login"), canaries("key")
    commands: list[tuple[list[str], set[int]]] = [
        (["lock", *stack, *world.mirrors], {0}),
        (["build", *stack, "--dry-run"], {0}),
        (["build", "--locked", "--layers", str(layers), "--definitions", "defs", *world.mirrors], {0}),
        (["explain", *stack], {0}),
        (["log", "job.log"], {1, 3}),
        (["check", str(image), "--level", "static", *host], {0, 1, 3}),
        (["explain", str(image), *host], {0, 1, 3}),
        (["bind", str(image), *host], {0, 1}),
        (["job", str(image), "--site", "lumi", "-o", "job.sh", *host, "--", "python", "x.py"], {0}),
        (["module", str(image), "-o", "modules", *host], {0}),
        (["host", "scan", "-o", "this.json"], {0, 3}),
        (["doctor"], {0, 1, 4}),
        (["draft", "Dockerfile"], {0}),
        (["draft", "Dockerfile", "-o", f"drafted-{as_json}".lower()], {0}),
        (["build", *stack, "--add", "telling", "--definitions", "told"], {2}),
        (["cache", "ls"], {0}),
        # what goes wrong reveals no more
        (["lock", *stack, "--offline", "-o", "a.lock"], {1, 2, 4}),
        (["lock", *stack, "-o", "b.lock"], {1, 4}),  # by the proxy, which does not answer
        (["lock", *stack, "--source", f"tool=https://me:{login}@host.test/x.tar.gz", "-o", "c.lock"], {2}),
        (["lock", *stack, "--source", f"tool=https://host.test/x.tar.gz?sig={key}", "-o", "c.lock"], {2}),
        (["lock", *stack, "--mirror", f"docker.io=http://me:{login}@127.0.0.1", "-o", "d.lock"], {2}),
        (["lock", *stack, "--mirror", f"http://me:{login}@127.0.0.1", "-o", "d.lock"], {2}),
        (["build", "--base", f"docker://me:{login}@host.test/x", "--dry-run"], {2}),
        (["build", *stack, "--no-such-option", f"https://me:{login}@host.test"], {2}),
    ]
    for words, codes in commands:
        at = words.index("--") if "--" in words else len(words)
        try:
            code = main([*words[:at], *(["--json"] if as_json else []), *words[at:]])
        except SystemExit as error:
            code = int(error.code or 0)
        streams = "".join(capsys.readouterr())
        assert code in codes, (words, streams)
        assert canaries.found_in(streams.encode()) == [], words
    written = [path for path in work.rglob("*") if path.is_file()]
    assert len(written) > 10
    for path in written:
        if path.name != "Dockerfile":
            assert canaries.found_in(path.read_bytes() + os.fsencode(path.name)) == [], path
