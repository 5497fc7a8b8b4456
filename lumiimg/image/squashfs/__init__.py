"""Squashfs 4.0, read lazily and with a bound on everything (kernel: Documentation/filesystems/squashfs.rst).

    superblock 96 B | compressor options | data blocks | fragments | inode table | directory table | fragment table |
    export table | id table | xattr table

Inodes, directories, fragment and id entries live in metadata blocks: at most 8 KiB of content, a u16 in front with
the stored size, bit 15 set where it is not compressed. A reference to an inode is the offset of its metadata block
in the inode table, shifted left by 16, plus the offset inside the block.
"""
