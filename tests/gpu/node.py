"""Starts a program as on a node of its own: `unshare --uts … node.py HOST [ADDRESS] -- PROGRAM …`.

With an address it is also on a network of its own (`unshare --net`), whose one interface, hsn0, has that address.
"""

import fcntl
import os
import socket
import struct
import sys

_SET_NAME, _SET_FLAGS, _SET_ADDRESS = 0x8923, 0x8914, 0x8916
"""SIOCSIFNAME, SIOCSIFFLAGS, SIOCSIFADDR (netdevice(7))."""
_UP_AND_RUNNING = 0x41

end = sys.argv.index("--")
host, *addresses = sys.argv[1:end]
socket.sethostname(host)
for address in addresses:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        fcntl.ioctl(own, _SET_NAME, struct.pack("16s16s", b"lo", b"hsn0"))
        fcntl.ioctl(own, _SET_FLAGS, struct.pack("16sH14x", b"hsn0", _UP_AND_RUNNING))
        name = struct.pack("16sHH4s8x", b"hsn0", socket.AF_INET, 0, socket.inet_aton(address))
        fcntl.ioctl(own, _SET_ADDRESS, name)
os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])  # noqa: S606
