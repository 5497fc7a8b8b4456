"""What the engine hides: for each folder that it may mount over, is a file of the image visible in the container?

The model is compared with Apptainer itself, for each setting in its configuration.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.host.engine_rules import with_engine_mounts
from lumiimg.host.node_facts import engine_settings
from lumiimg.host.snapshot import ContainerEngine, read_snapshot
from lumiimg.image import open_image
from tests.shared.fabric_builder import host, snapshot
from tests.shared.small_roots import small_root

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]

HOME = Path.home()
FOLDERS = ("tmp", "tmp/a/b", "var/tmp/a", "dev/a", "dev/shm", "proc/a", "sys/a", "run/a", "home/nobody/a", f"{str(HOME)[1:]}/a-of-the-image", "root/a", "users/a", "opt/a", "srv/a", "mnt/a", "var/lib/a")  # fmt: skip
MARK = "mark-of-the-image"
LIST = f"for folder; do test -e /$folder/{MARK} && echo $folder; done; true"


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with its own file in each folder, and a host folder with the same name as one in the image."""
    root = small_root(tmp_path_factory.mktemp("hidden") / "image")
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / MARK).touch()
    return root


def seen(engine: Engine, image: Path, words: tuple[str, ...], variables: dict[str, str]) -> set[str]:
    """Return the files that are visible with the engine."""
    done = subprocess.run(
        [engine.path, *words, image, "/bin/sh", "-c", LIST, "sh", *FOLDERS],
        env=os.environ | variables,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def modelled(image: Path, tmp_path: Path, settings: dict[str, str], variables: dict[str, str]) -> set[str]:
    """Return the files that are visible by the model, with a snapshot of this machine."""
    engine = ContainerEngine("Apptainer", "1.4.5", None, settings)
    node = read_snapshot(snapshot(host(tmp_path / "node"), host=os.uname().nodename.partition(".")[0], engine=engine))
    with open_image(image) as opened:
        root = with_engine_mounts(opened, {"HOME": str(HOME), "PWD": "/"} | variables, node).root
        return {folder for folder in FOLDERS if root.is_file(f"/{folder}/{MARK}")}


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({}, {}),
        ({}, {"APPTAINER_NO_MOUNT": "tmp,home"}),
        ({}, {"SINGULARITY_NO_MOUNT": "sys"}),
        ({}, {"APPTAINER_NO_HOME": "1"}),
        ({"mount tmp": "no"}, {}),
        ({"mount home": "no"}, {}),
        ({"mount dev": "minimal"}, {}),
        ({"mount sys": "no"}, {}),
        ({"enable overlay": "no"}, {}),
        ({"enable overlay": "no", "enable underlay": "no"}, {}),
    ],
    ids=str,
)
def test_a_file_is_there_in_the_container_where_the_model_has_it(
    engine: Engine, marked: Path, tmp_path: Path, changes: dict[str, str], variables: dict[str, str]
) -> None:
    if engine.kind is not EngineKind.APPTAINER:
        pytest.skip("another engine than Apptainer takes no configuration from its users")
    lines = Path("/etc/apptainer/apptainer.conf").read_text().splitlines()
    kept = [line for line in lines if line.partition("=")[0].strip() not in changes]
    configuration = tmp_path / "apptainer.conf"
    configuration.write_text("\n".join([*kept, *(f"{name} = {value}" for name, value in changes.items()), ""]))
    real = seen(engine, marked, ("--config", str(configuration), "exec"), variables)
    assert real == modelled(marked, tmp_path, engine_settings(configuration.read_text()), variables)
    assert real
    assert real != set(FOLDERS)
