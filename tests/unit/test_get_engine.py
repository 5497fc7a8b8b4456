"""What .ci/get-engine asks of apt: real apt-get, over sources and lists of these tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.shared.programs import needs

ROOT = Path(__file__).parents[2]
RELEASE = """\
Origin: {origin}
Label: {label}
Codename: x
Date: Sat, 01 Nov 2025 10:00:00 UTC
Components: {component}
Architectures: amd64
SHA256:
 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 {component}/binary-amd64/Packages
"""


class Apt:
    """The sources and lists of a machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("etc/sources.list.d", "etc/preferences.d", "etc/apt.conf.d", "lists/partial", "cache"):
            (folder / name).mkdir(parents=True)
        (folder / "apt.conf").write_text(
            f'Dir::Etc "{folder}/etc";\nDir::State::lists "{folder}/lists";\nDir::Cache "{folder}/cache";\n'
            'APT::Architecture "amd64";\n'
        )

    def source(self, address: str, origin: str, label: str = "", component: str = "main", more: str = "") -> None:
        """Name an archive that apt has the lists of."""
        entry = f"Types: deb\nURIs: http://{address}\nSuites: x\nComponents: {component}\nTrusted: yes\n{more}\n"
        with (self._folder / "etc" / "sources.list.d" / "a.sources").open("a") as file:
            file.write(entry)
        name = f"{address.replace('/', '_')}_dists_x_"
        text = RELEASE.format(origin=origin, label=label or origin, component=component)
        (self._folder / "lists" / f"{name}Release").write_text(text)
        (self._folder / "lists" / f"{name}{component}_binary-amd64_Packages").write_text("")

    def mirror(self) -> str:
        """Return what get-engine takes for the mirror of Debian."""
        script = (ROOT / ".ci" / "get-engine").read_text()
        function = re.search(r"^apt_mirror\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)
        assert function is not None
        argv = ["bash", "-euo", "pipefail", "-c", f"{function[0]}\napt_mirror"]
        env = {"PATH": os.environ["PATH"], "APT_CONFIG": str(self._folder / "apt.conf")}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_the_engine_is_taken_from_debians_own_archive_alone(tmp_path: Path) -> None:
    needs("apt-get")
    apt = Apt(tmp_path)
    apt.source("docker.test/linux/debian", "Docker", component="stable")
    apt.source("packages.test/x/debian", "packages.test/x")
    apt.source("off.test/debian", "Debian", more="Enabled: no\n")
    apt.source("security.test/debian-security", "Debian", "Debian-Security")
    assert apt.mirror() == ""
    apt.source("mine.test/debian", "Debian")
    apt.source("other.test/debian", "Debian")
    assert apt.mirror() == "http://mine.test/debian/"
