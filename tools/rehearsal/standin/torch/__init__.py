"""A stand-in for PyTorch, for rehearsals on machines without its wheels for ROCm: it computes nothing."""

from torch.standin import stand_in
from torch.version import __version__ as _version


class TorchVersion(str):
    """A version that can be compared with a tuple, too; of a text, the numbers before `+` count."""

    __slots__ = ()

    def _numbers(self, other):
        def split(text):
            return tuple(int(part) for part in text.partition("+")[0].split(".") if part.isdigit())

        return split(str(self)), other if isinstance(other, tuple) else split(str(other))

    def __ge__(self, other):
        own, others = self._numbers(other)
        return own >= others

    def __gt__(self, other):
        own, others = self._numbers(other)
        return own > others

    def __le__(self, other):
        return not self > other

    def __lt__(self, other):
        return not self >= other


class iinfo:  # noqa: N801 - as it is called there
    """The bounds of 64 bits, whatever the type."""

    min, max, bits = -(2**63), 2**63 - 1, 64

    def __init__(self, kind=None):
        pass


__version__ = TorchVersion(_version)
stand_in(__name__)

from torch import __config__  # noqa: E402,F401 - after the finder, as the real one is there without an import
