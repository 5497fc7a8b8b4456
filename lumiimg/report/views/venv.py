"""What `venv` answers: what was put in, what stays, and how a job takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.findings import Advice, Severity
from lumiimg.report.document import Document, Item, Paragraph, Section
from lumiimg.wording import count, operand, typed

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.build.venv import WrittenVenv


def venv_document(made: WrittenVenv, image: Path, output: Path) -> Document:
    """Return what was made over an image, both as they were named."""
    record, doubt = made.record, made.doubt
    stays = f"its torch {record.torch} stays" if record.torch else "what it has stays"
    words = ("lumiimg", "job", operand(str(image)), "--venv", operand(str(output)), "-o", "job.sh")
    packages = ", ".join(f"{name} {version}" for name, version in sorted(record.packages.items()))
    doubts = (Item(Severity.UNKNOWN, f"{doubt}: packages that only it adds were not looked at"),) if doubt else ()
    about = f"for Python {record.python} of this image alone; nothing was imported"
    return Document(
        "venv",
        str(output),
        f"made {output} over {image}: {count(len(record.packages), 'package')}, {stays}",
        Severity.OK,
        Advice(next=f"{typed(words)} -- python train.py"),
        sections=(
            Section("Packages", (Paragraph(packages), Paragraph(about, quiet=True))),
            Section("What is not known", doubts),
        ),
        is_list=True,
    )
