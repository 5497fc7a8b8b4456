"""Squashfs 4.0, read lazily and with a bound on everything; its records are for who writes one, too."""

from lumiimg.image.squashfs.format import Compressor, Content, Superblock
from lumiimg.image.squashfs.tree import SquashfsTree

__all__ = ["Compressor", "Content", "SquashfsTree", "Superblock", "format"]
