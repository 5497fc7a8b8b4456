"""A base from a registry: Debian's docker-registry on loopback, and an image that these tests make and push."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lumiimg.image import open_image
from tests.engine.conftest import built_by_engine, engine_builds, inside, lumiimg, write_layer
from tests.shared.build_traces import SINGULARITY, shown
from tests.shared.layer_builder import LAYER
from tests.shared.registries import push
from tests.shared.small_roots import small_root

if TYPE_CHECKING:
    from lumiimg.engine.engine import Engine

KERNEL = {"LUMIIMG_ENGINE": "namespaces"}
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def small_layer(root: Path) -> bytes:
    """Return a few programs as a layer; one of its files is not owned by root."""
    (small_root(root) / "etc/shadow").write_text("root:*:1::::::\n")

    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid, info.gid = 0, 42 if info.name == "./etc/shadow" else 0
        info.uname = info.gname = ""
        return info

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(root, ".", filter=owned)
    return gzip.compress(buffer.getvalue(), 1, mtime=0)


def base_layer(folder: Path, bootstrap: str, post: str = "true\n") -> Path:
    facts = 'kind = "base"\nsummary = "x"\nsource = "x"\ndate = 2026-11-21\n[[bootstrap]]\n'
    return write_layer(folder / "layers/base", post, facts + bootstrap)


def test_a_base_from_a_registry_is_the_same_by_the_engine_and_by_the_kernel(
    engine: Engine, registry: str, tmp_path: Path
) -> None:
    config: dict[str, object] = {"Env": ["PATH=/opt/bin:/usr/bin:/bin", "A=b c"], "Labels": {"a": "b"}}
    config |= {"Entrypoint": ["/bin/ls", "-d"], "Cmd": ["/etc", "/opt"]}
    digest = push(registry, "library/small", "1", small_layer(tmp_path / "root"), config=config)
    layers = base_layer(tmp_path, f'agent = "docker"\nfrom = "small@{digest}"\n')
    found = {}
    request: list[str | Path] = ["--layers", layers, "--base", "base", "--mirror", f"docker.io=http://{registry}"]
    for name, env in (("ours", {}), ("kernel", KERNEL)):
        image = tmp_path / f"{name}.sif"
        words = [*request, "-o", image]
        own = {**env, "LUMIIMG_CACHE": str(tmp_path / name)}
        if name == "ours":
            (layers / "base/post.sh").write_text("false\n")
            assert "layer base: post.sh line 1: false: exit 1" in lumiimg("build", *words, env=own).err
        (layers / "base/post.sh").write_text('echo "${A-unset}" >/opt/seen\n')
        result = lumiimg("build", *words, "--json", env=own)
        assert result.code == 0, result.err
        if name == "ours":
            steps = {stage["name"]: stage["reused"] for stage in result.data["stages"]}
            assert steps == {"00-bootstrap": True, "01-base": False, "image": False}, (
                "a base was made again for its script"
            )
            kept = lumiimg("cache", "ls", "--json", env=own).data["entries"]
            assert {*map(tuple, (entry["layers"] for entry in kept))} == {("base (bootstrap)",), ("base",)}
        # the engine gives all files of a registry image to root; lumiimg preserves their owners
        found[name] = {path: (seen[:2], seen[4:]) for path, seen in shown(image).items()}
    alone = built_by_engine(engine, tmp_path / "engine.sif", *request, flags=["--no-https"])
    found["engine"] = {path: (seen[:2], seen[4:]) for path, seen in shown(alone).items()}
    paths = found["engine"].keys() | found["ours"].keys()
    others = {path for path in paths if found["engine"].get(path) != found["ours"].get(path)}
    noted = ("/.lumiimg", "/.singularity.d/Singularity", "/.singularity.d/runscript")
    assert {path for path in others if not path.startswith(noted)} == set()
    for arguments, listed in (([], "/etc\n/opt\n"), (["/proc"], "/proc\n")):
        for image in (tmp_path / "ours.sif", alone):
            done = subprocess.run([engine.path, "run", image, *arguments], capture_output=True, text=True, check=True)
            assert done.stdout == listed, image
    assert (tmp_path / "ours.sif").read_bytes() == (tmp_path / "kernel.sif").read_bytes()
    with open_image(tmp_path / "ours.sif") as opened:
        assert opened.root.stat("/etc/shadow").gid == 42


def test_layers_on_a_base_without_ids_have_its_variables_once_and_all_are_in_the_image(
    engine: Engine, registry: str, tmp_path: Path
) -> None:
    """As on LUMI, where users have no subordinate ids."""
    config: dict[str, object] = {"Env": ["PATH=/opt/bin:/usr/bin:/bin", "A=b c"], "Labels": {"a": "b"}}
    digest = push(registry, "library/lumi", "1", small_layer(tmp_path / "root"), config=config)
    bootstrap = f'agent = "docker"\nfrom = "lumi@{digest}"\n[environment.prepend]\nPATH = "/opt/base"\n'
    layers = base_layer(tmp_path, bootstrap, "touch /opt/of-base\n")
    write_layer(
        layers / "top",
        'test "$A" = "b c"; test "${PATH%%:/usr*}" = /opt/base:/opt/bin\n'
        'cat "$LAYER_FILES/word" >/opt/seen; echo x 2>/dev/null >"$LAYER_FILES/word" && exit 1\n'
        'touch /tmp/mine /var/tmp/mine; ls /tmp >/opt/tmp; echo "export FROM_SCRIPT=1" >>"$SINGULARITY_ENVIRONMENT"\n',
        f'{LAYER}files = ["word"]\n[environment.set]\nV_TOP = "1"\n',
        word="word\n",
        test_sh='test "$V_TOP$FROM_SCRIPT" = 11; test -e /opt/of-base\n',
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mksquashfs", "sh", "bash", "env", "rm", "cat", "mkdir", "proot"):
        (programs / name).symlink_to(str(shutil.which(name)))
    (programs / "singularity").write_text(SINGULARITY.format(engine=engine.path, path=os.environ["PATH"]))
    (programs / "singularity").chmod(0o755)
    words: list[str | Path] = ["--layers", layers, "--base", "base", "--add", "top", "-o", tmp_path / "x.sif"]
    env = {"LUMIIMG_CACHE": str(tmp_path / "cache"), "PATH": str(programs)}
    result = lumiimg("build", *words, "--mirror", f"docker.io=http://{registry}", "--json", env=env)
    assert result.code == 0, result.err
    assert [stage["name"] for stage in result.data["stages"]] == ["00-bootstrap", "01-base", "02-top", "image"]
    assert inside(
        engine, tmp_path / "x.sif", "sh", "-c", "echo $A $V_TOP $FROM_SCRIPT ${PATH%%:/usr*}; cat /opt/seen /opt/tmp"
    ) == ("b c 1 1 /opt/base:/opt/bin\nword\nmine\n")
    with open_image(tmp_path / "x.sif") as opened:
        assert opened.description.labels["a"] == "b"
        assert opened.description.labels["lumiimg.layer.02"] == "top"
        assert not opened.root.exists("/opt/lumiimg/build")
        assert not opened.root.exists("/tmp/mine")
        text = opened.root.read_bytes("/.singularity.d/env/90-environment.sh", 1 << 16).decode()
        assert (text.count("/opt/base"), text.count("V_TOP")) == (1, 1)


def test_a_base_by_debootstrap_has_the_files_that_it_has_by_the_engine(
    engine: Engine, mirror: str, tmp_path: Path
) -> None:
    definition = tmp_path / "slim.def"
    definition.write_text(f"Bootstrap: debootstrap\nOSVersion: trixie\nMirrorURL: {mirror}\n")
    engine_builds(engine, definition, tmp_path / "slim.sif")
    layers = base_layer(tmp_path, 'agent = "debootstrap"\nfrom = "trixie"\nmirror = "debian"\n')
    image = tmp_path / "x.sif"
    words: list[str | Path] = ["--layers", layers, "--base", "base", "--mirror", f"debian={mirror}", "-o", image]
    result = lumiimg("build", *words, "--verbose", env={"LUMIIMG_CACHE": str(tmp_path / "cache")})
    assert result.code == 0, result.err
    # progress is reported line by line, where an engine prints one line for everything
    for text in (result.err, (tmp_path / "x.sif.log").read_text()):
        assert "I: Extracting dpkg..." in text
        assert "I: Base system installed successfully." in text
    found, wanted = shown(image), shown(tmp_path / "slim.sif")
    assert "/etc/hostname" not in found, "that of the machine that built it"
    dated = (
        "/dev/",
        "/etc/hostname",
        "/etc/shadow",
        "/var/lib/apt/lists/",
        "/var/log/",
        "/var/cache/ldconfig/aux-cache",
        "/.singularity.d/",
        "/.lumiimg",
        "/opt/lumiimg",
    )
    paths = {path for path in found.keys() | wanted.keys() if not path.startswith(dated)}
    assert len(paths) > 5000
    assert {path: (found.get(path), wanted.get(path)) for path in paths if found.get(path) != wanted.get(path)} == {}
