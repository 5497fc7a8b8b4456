"""A bounded memory of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Keeps values up to a total weight; what was not used for longest goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return a value that is still here."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Remember a value; one that alone is too heavy is remembered until the next."""
        while self._items and self._weight + weight > self._limit:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone
        self._items[key] = (value, weight)
        self._weight += weight
