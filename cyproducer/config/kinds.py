"""Defines the values that a setting accepts: a text for error messages and a function for the canonical value.

It also has the rule for valid names of topics.
"""

import math
import operator
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
DEFAULT_PORT = 9092
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TOPIC_NAME_MAX = 249
TRANSACTIONAL_ID_BYTES_MAX = 255
RACK_BYTES_MAX = 255
ROUND_ROBIN = "round_robin"
#: Java's name of the same partitioner, for settings that are text.
_JAVA_ROUND_ROBIN = "org.apache.kafka.clients.producer.RoundRobinPartitioner"
_TOPIC_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_MAX}}}")
# A UNIX socket's address holds 108 bytes with the terminating zero (unix(7)).
_SUN_PATH_MAX = 107


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows `name` as the name of a topic (Topic.java)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


class Wrong(Exception):
    """A value is not allowed.

    `reason` is added to the error message. `shown`, if not empty, is the part of the value that the message shows.
    """

    def __init__(self, reason: str = "", shown: str = "") -> None:
        super().__init__(reason)
        self.reason, self.shown = reason, shown


class Kind(NamedTuple):
    """What a setting accepts: as a text, and as a function (value, whether text is allowed) -> canonical value."""

    allowed: str
    parse: Callable[[Any, bool], Any]


def number(
    low: int, high: int = INT_MAX, *, fractions: bool = False, infinite: bool = False, also: int | None = None
) -> Kind:
    """Return the kind of a number from `low` to `high`. `also` is allowed too; `infinite`: infinity means `high`."""
    pattern = r"-?[0-9]{1,20}(\.[0-9]{0,9})?" if fractions else r"-?[0-9]{1,20}"

    def parse(value: Any, text: bool) -> Any:
        if infinite and isinstance(value, float) and value == math.inf:
            return high
        if isinstance(value, str) and text and re.fullmatch(pattern, value.strip(), re.ASCII):
            value = float(value) if "." in value else int(value)
        if fractions and isinstance(value, float):
            number: float = float(value)
        elif isinstance(value, bool) or not hasattr(value, "__index__"):
            raise Wrong
        else:
            number = operator.index(value)
        if not low <= number <= high and number != also:
            raise Wrong
        return number

    other = "" if also is None else f", or {also}"
    return Kind(f"{'a number' if fractions else 'an integer'} from {low} to {high}{other}", parse)


def long(low: int, *, fractions: bool = False) -> Kind:
    """Return the kind of one of Java's long values. What does not fit into 31 bits counts as INT_MAX.

    A `low` of -1 allows every negative number, as in Java, which counts as -1.
    """
    every = number(-LONG_MAX - 1 if low < 0 else low, LONG_MAX, fractions=fractions)

    def parse(value: Any, text: bool) -> Any:
        return max(low, min(every.parse(value, text), INT_MAX))

    return Kind(every.allowed, parse)


def boolean() -> Kind:
    def parse(value: Any, text: bool) -> bool:
        if isinstance(value, str) and text and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise Wrong
        return value

    return Kind("True or False", parse)


def acks() -> Kind:
    known = {"all": -1, "-1": -1, "0": 0, "1": 1}

    def parse(value: Any, text: bool) -> int:
        if isinstance(value, bool) or str(value) not in known or not isinstance(value, str | int):
            raise Wrong
        return known[str(value)]

    return Kind('0, 1, or "all" (the same as -1)', parse)


def choice(*choices: str, none: bool = False, upper: bool = False) -> Kind:
    def parse(value: Any, text: bool) -> str | None:
        if value is None and none:
            return None
        if not isinstance(value, str):
            raise Wrong
        value = value.strip().upper() if upper else value.strip().lower()
        if value not in choices:
            raise Wrong
        return None if none and value == "none" else value

    return Kind("one of " + ", ".join((["None"] if none else []) + [repr(c) for c in choices]), parse)


def client_id() -> Kind:
    def parse(value: Any, text: bool) -> str:
        if value is None:
            return "cyproducer"
        if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value.encode()) <= 255:
            raise Wrong
        return value

    return Kind("a str of printable characters, 1 to 255 bytes in UTF-8", parse)


def rack() -> Kind:
    def parse(value: Any, text: bool) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value.encode(errors="replace")) > RACK_BYTES_MAX:
            raise Wrong
        return value

    return Kind(f"a str of at most {RACK_BYTES_MAX} bytes in UTF-8", parse)


def transactional_id() -> Kind:
    def parse(value: Any, text: bool) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise Wrong
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise Wrong("it has a surrogate, which UTF-8 cannot express") from None
        if not 1 <= size <= TRANSACTIONAL_ID_BYTES_MAX:
            raise Wrong
        return str(value)

    return Kind(f"None, or a str of 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes in UTF-8", parse)


def serializer() -> Kind:
    def parse(value: Any, text: bool) -> Any:
        if value is None:
            return None
        has_method = callable(getattr(value, "serialize", None))
        if isinstance(value, type) and has_method:
            raise Wrong("this is a serializer's class, not an instance")
        if not has_method and not callable(value):
            raise Wrong
        return value

    return Kind("None, a callable, or an object with serialize(topic, headers, data)", parse)


def partitioner() -> Kind:
    def parse(value: Any, text: bool) -> Any:
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if isinstance(value, str):
            name = value.strip()
            if name == _JAVA_ROUND_ROBIN or name.lower() == ROUND_ROBIN:
                return ROUND_ROBIN
            if re.sub(r"[^a-z0-9]", "", name.lower()) in ("murmur2", "murmur2random", "default", "defaultpartitioner"):
                raise Wrong("the built-in partitioner chooses so: leave the setting out")
            if "." in name:
                raise Wrong("classes of Java cannot be loaded; give an object of Python")
            import difflib  # imported here because only a wrong name needs it

            near = difflib.get_close_matches(re.sub(r"[^a-z]+", "_", name.lower()), [ROUND_ROBIN], n=1)
            raise Wrong(f"did you mean {near[0]!r}?" if near else "")
        has_method = callable(getattr(value, "partition", None))
        if isinstance(value, type):
            raise Wrong("this is a partitioner's class, not an instance")
        if not has_method and not callable(value):
            raise Wrong
        return value

    return Kind(
        "None, 'round_robin', a callable (key_bytes, all_partitions, available_partitions), or an object with "
        "partition(topic, key, key_bytes, value, value_bytes, cluster)",
        parse,
    )


def interceptors() -> Kind:
    def parse(value: Any, text: bool) -> tuple[Any, ...] | None:
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        if isinstance(value, str):
            raise Wrong("classes of Java cannot be loaded; give objects of Python")
        if not isinstance(value, list | tuple):
            raise Wrong
        for each in value:
            if isinstance(each, type):
                raise Wrong(f"{each.__name__} is an interceptor's class, not an instance")
            if not any(callable(getattr(each, name, None)) for name in ("on_send", "on_acknowledgement")):
                raise Wrong(f"an object of {type(each).__name__} has neither of the two methods")
        return tuple(value) or None

    return Kind("None, or a list of objects with on_send(record) or on_acknowledgement(metadata, error)", parse)


def nothing(allowed: str, *empty: Any) -> Kind:
    """Return the kind of a setting that is not supported: None and the values of `empty` mean "not used"."""

    def parse(value: Any, text: bool) -> Any:
        return None if value is None or any(type(value) is type(e) and value == e for e in empty) else value

    return Kind(allowed, parse)


def optional(kind: Kind) -> Kind:
    def parse(value: Any, text: bool) -> Any:
        return None if value is None else kind.parse(value, text)

    return Kind("None, or " + kind.allowed, parse)


def socket_path() -> Kind:
    def parse(value: Any, text: bool) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str | os.PathLike):
            raise Wrong
        path = os.fspath(value)
        if not isinstance(path, str) or not path or "\0" in path:
            raise Wrong
        # A relative path would name another socket after chdir().
        path = os.path.abspath(path)
        if len(os.fsencode(path)) > _SUN_PATH_MAX:
            raise Wrong("the path is too long for the address of a UNIX socket")
        return path

    return Kind(f"the path of a sender's socket, at most {_SUN_PATH_MAX} bytes", parse)


def _server(entry: str) -> str:
    """Return one bootstrap entry as host:port, the host in lower case, an IPv6 address in brackets.

    A security protocol before it remains, in upper case: SSL://host:port.
    """
    shown = repr(entry)
    protocol, separator, rest = entry.strip().rpartition("://")
    protocol = protocol.upper()
    if separator and protocol not in PROTOCOLS:
        raise Wrong(f"the entry begins with none of the protocols {', '.join(PROTOCOLS)}; write host:port", shown)
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.]+(?:%[0-9A-Za-z_.-]+)?)\](?::([0-9]{1,5}))?", rest)
    named = re.fullmatch(r"([0-9A-Za-z_.-]+)(?::([0-9]{1,5}))?", rest)
    found = bracketed or named
    if found is None:
        hint = "; an IPv6 address needs brackets" if rest.count(":") > 1 else ""
        raise Wrong(f"the entry is not host:port{hint}", shown)
    port = DEFAULT_PORT if found[2] is None else int(found[2])
    if not 1 <= port <= 65535:
        raise Wrong("the entry's port is not from 1 to 65535", shown)
    # A zone id (after %) is the name of a network interface, which is case-sensitive.
    address, percent, zone = found[1].partition("%")
    host = address.lower() + percent + zone
    return protocol + separator + (f"[{host}]:{port}" if bracketed else f"{host}:{port}")


def servers() -> Kind:
    def parse(value: Any, text: bool) -> tuple[str, ...]:
        if value is None:
            return ()
        entries = value.split(",") if isinstance(value, str) else value
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            raise Wrong
        # Check all entries before any entry is shown: a password may contain the comma that separates entries.
        if any("@" in entry for entry in entries):
            raise Wrong("an entry contains credentials (user:password@); remove them", "<hidden>")
        entries = [entry for entry in entries if entry.strip()]
        if not entries:
            raise Wrong("the list contains no broker")
        return tuple(dict.fromkeys(_server(entry) for entry in entries))

    return Kind('"host:port", several separated by commas, or a list of them', parse)
