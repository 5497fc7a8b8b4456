"""Real builds and checks with secrets in the environment: no script, log, image or answer contains them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from lumiimg.catalog.settings import read_settings
from lumiimg.core.errors import ExitCode
from lumiimg.image import FileKind, open_image
from tests.engine.conftest import lumiimg, write_layer

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

SECRETS = {
    "HF_TOKEN": "CanaryOfTheHub",
    "MY_PASSWORD": "CanaryOfMine",
    "AWS_SECRET_ACCESS_KEY": "CanaryOfTheStore",
    "APPTAINER_DOCKER_PASSWORD": "CanaryOfTheRegistry",
    "APPTAINERENV_HF_TOKEN": "CanaryOfContainers",
}
PROXY = {"https_proxy": "http://me:CanaryOfTheProxy@127.0.0.1:1"}
# everything that a script can see of its surroundings goes to the log, and all but the proxy into the image
TELLER = r"""
env
for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do tr '\0' '\n' <"$file" 2>/dev/null || true; done
cat ~/.netrc /root/.netrc "${NETRC:-}" ~/.apptainer/docker-config.json 2>/dev/null || true
env | grep -vi proxy >/opt/told
echo told >>/opt/told
"""


@pytest.mark.parametrize("way", ["overlay", "sandbox"])
@pytest.mark.threat
def test_no_secret_is_in_what_a_build_and_a_check_leave(tmp_path: Path, way: str) -> None:
    # unique, so that it runs each time: strategies, and runs of this test, share the cache
    layers = write_layer(tmp_path / "layers/teller", f"# {uuid.uuid4()}\n{TELLER}")
    image = tmp_path / "x.sif"
    (tmp_path / ".netrc").write_text("default login me password CanaryOfNetrc\n")
    (tmp_path / ".apptainer").mkdir()
    (tmp_path / ".apptainer/docker-config.json").write_text("CanaryOfRegistries")
    homes = {
        "HOME": str(tmp_path),
        "NETRC": str(tmp_path / ".netrc"),
        "LUMIIMG_CACHE": str(read_settings(os.environ).cache),
    }
    secrets = {**SECRETS, **PROXY, **homes}
    words = ["--base", "debian-13", "--add", "teller", "--layers", str(layers), "--strategy", way]
    built = lumiimg("build", *words, "-o", image, env=secrets)
    assert built.code == ExitCode.GOOD, built.err
    checked = lumiimg("check", image, "--json", env=secrets)
    assert checked.code in {0, 1, 3}
    log = (tmp_path / "x.sif.log").read_text(errors="replace")
    assert "https_proxy=" in log, "the script was run, and with what builds need"
    for text in (built.out, built.err, checked.out, checked.err, log, image.read_bytes().decode("latin-1")):
        assert "CanaryOf" not in text
    with open_image(image) as opened:
        for entry in opened.root.walk():
            if entry.kind is FileKind.FILE and entry.path.startswith(("/opt/", "/.lumiimg/", "/.singularity.d/")):
                assert b"CanaryOf" not in opened.root.read_bytes(entry.path, 64 << 20), entry.path
        assert b"told" in opened.root.read_bytes("/opt/told", 1 << 20)


@pytest.mark.threat
def test_a_build_that_fails_on_a_secret_does_not_repeat_it(tmp_path: Path) -> None:
    layers = write_layer(tmp_path / "layers/teller", 'echo "cannot reach $https_proxy" >&2\nexit 1\n')
    words = ["--base", "debian-13", "--add", "teller", "--layers", str(layers)]
    result = lumiimg("build", *words, "-o", tmp_path / "x.sif", env=PROXY)
    assert result.code == ExitCode.NO
    assert "cannot reach http://[hidden]@127.0.0.1:1" in result.err
    assert "CanaryOf" not in result.out + result.err + (tmp_path / "x.sif.log").read_text()
