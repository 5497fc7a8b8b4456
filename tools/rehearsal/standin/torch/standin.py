"""Makes a package in which every name is there: an empty class, or a module where it is imported as one."""

import importlib.machinery
import sys
import types
import typing

_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, classmethod, staticmethod, property)


class _Value:
    """What a call returns: false, zero, empty; as a decorator it changes nothing."""

    _is_protocol = False  # isinstance() of Python 3.10 asks for it

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()

    def __class_getitem__(cls, item):
        return cls

    def __call__(self, *args, **kwargs):
        return _decorated(args[0]) if len(args) == 1 and not kwargs and isinstance(args[0], _PLAIN) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Value()

    def __bool__(self):
        return False

    def __len__(self):
        return 0

    def __iter__(self):
        return iter(())

    def __index__(self):
        return 0

    __int__ = __index__

    def __float__(self):
        return 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __getitem__(self, key):
        return self

    def __setitem__(self, key, value):
        pass

    def _no(self, other):
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _no

    def _same(self, *other):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same
    __pow__ = __rpow__ = __neg__ = __floordiv__ = __and__ = _same


def _decorated(what):
    """A function that was made an operator has methods that register others."""
    if isinstance(what, types.FunctionType):
        for name in ("register_fake", "register_kernel", "register_autograd", "defvjp"):
            vars(what).setdefault(name, _Value())
    return what


class _Name(type(typing.Protocol)):
    """The class of the empty classes, whose every attribute is another."""

    def __getattr__(cls, name):
        # what is built on nn.Module is asked which attributes it has, as by peft
        is_module = "stands_in" not in vars(cls) and any(one.__name__ == "Module" for one in cls.__mro__)
        # a module has private names, as torch.fx._pytree; of a class, Python and others ask whether it has theirs
        is_like_module = cls.__name__ in {"_C", cls.__name__.lower()}
        if name.startswith("__" if is_like_module else "_") or is_module:
            raise AttributeError(name)
        made = _named(name, f"{cls.__module__}.{cls.__name__}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *args, **kwargs):
        if "stands_in" in vars(cls) and len(args) == 1 and not kwargs and isinstance(args[0], _PLAIN):
            return _decorated(args[0])
        return super().__call__(*args, **kwargs)

    def __iter__(cls):
        return iter(())

    def __len__(cls):
        return 0

    def __bool__(cls):
        return True

    def __or__(cls, other):
        made = super().__or__(other)  # of two types
        return other if made is NotImplemented else made

    def _no(cls, other):
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _no


def _named(name, module):
    return _Name(name, (_Value,), {"__module__": module, "stands_in": True})


class _Finder:
    """Finds the modules of the package that have no file of their own."""

    def __init__(self, package):
        self._package = package

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(f"{self._package}."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        _open(module)


def _open(module):
    def missing(name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _named(name, module.__name__)
        setattr(module, name, made)
        return made

    module.__getattr__ = missing


def stand_in(package):
    """Have every name of a package be there."""
    module = sys.modules[package]
    _open(module)
    sys.meta_path.append(_Finder(package))
