"""Gives tests the C structures of Arrow data, so that they can change single members as a faulty library would."""

import ctypes
from typing import Any

INT64 = ctypes.c_int64
POINTER = ctypes.c_void_p
RELEASE = ctypes.CFUNCTYPE(None, POINTER)


class Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", POINTER),
        ("flags", INT64),
        ("n_children", INT64),
        ("children", ctypes.POINTER(POINTER)),
        ("dictionary", POINTER),
        ("release", POINTER),
        ("private_data", POINTER),
    )


class Array(ctypes.Structure):
    _fields_ = (
        ("length", INT64),
        ("null_count", INT64),
        ("offset", INT64),
        ("n_buffers", INT64),
        ("n_children", INT64),
        ("buffers", ctypes.POINTER(POINTER)),
        ("children", ctypes.POINTER(POINTER)),
        ("dictionary", POINTER),
        ("release", POINTER),
        ("private_data", POINTER),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (POINTER, ctypes.c_char_p, POINTER)
_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype, _address.argtypes = POINTER, (ctypes.py_object, ctypes.c_char_p)


class Foreign:
    """An Arrow array that a test can change: `schema`, `array`, and those of children as `schema.child(0)` and so on.

    The structures are copies of those of `source`, an array or record batch of pyarrow, with the same buffers. They
    live as long as this object, which tests keep until the rows have been read.
    """

    def __init__(self, source: Any) -> None:
        self._owner = source.__arrow_c_array__()
        self.releases = 0
        self._callback = RELEASE(self._release)
        self._made: list[Any] = []
        self.schema = self._copy(Schema, _address(self._owner[0], b"arrow_schema"))
        self.array = self._copy(Array, _address(self._owner[1], b"arrow_array"))

    def _release(self, address: int) -> None:
        self.releases += 1
        Array.from_address(address).release = None

    def _copy(self, kind: Any, address: int) -> Any:
        original = kind.from_address(address)
        copy = kind.from_buffer_copy(original)
        copy.release = ctypes.cast(self._callback, POINTER)
        if kind is Schema:
            copy.release = ctypes.cast(_IGNORE, POINTER)
        else:
            buffers = [original.buffers[at] for at in range(copy.n_buffers)]
            copy.buffers = self.pointers(buffers)
        copy.children = self.pointers(
            [ctypes.addressof(self._copy(kind, original.children[at])) for at in range(copy.n_children)]
        )
        if original.dictionary:
            copy.dictionary = ctypes.addressof(self._copy(kind, original.dictionary))
        self._made.append(copy)
        return copy

    def pointers(self, addresses: list[int | None]) -> Any:
        """Return a C array of addresses that lives as long as this object."""
        made = (POINTER * max(len(addresses), 1))(*addresses)
        self._made.append(made)
        return ctypes.cast(made, ctypes.POINTER(POINTER))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return (
            _new(ctypes.addressof(self.schema), b"arrow_schema", None),
            _new(ctypes.addressof(self.array), b"arrow_array", None),
        )


def child(structure: Any, *path: int) -> Any:
    """Return a child of a schema or array, for example the first child of the second with `child(schema, 1, 0)`."""
    for at in path:
        structure = type(structure).from_address(structure.children[at])
    return structure


def words(structure: Any) -> Any:
    """Return the schema or array of a dictionary's values."""
    return type(structure).from_address(structure.dictionary)


_IGNORE = RELEASE(lambda address: None)
