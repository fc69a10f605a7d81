"""Structs that cannot be made themselves."""

from abc import ABCMeta

from msgspec import StructMeta


class AbstractStruct(StructMeta, ABCMeta):
    """The metaclass of a struct with abstract methods: making one without them raises TypeError."""
