"""Defines the values that a setting accepts: a text for error messages and a function for the canonical value.

It also has the rule for valid names of topics.
"""

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cyproducer.config import pem
from cyproducer.config.ciphers import openssl_ciphers, why_refused

__all__ = [
    "INT_MAX",
    "LONG_MAX",
    "MECHANISMS",
    "PROTOCOLS",
    "ROUND_ROBIN",
    "TLS_VERSIONS",
    "USE_OAUTH_FOR_IAM",
    "CalledTokenProvider",
    "Kind",
    "Wrong",
    "host_port",
    "is_topic_name",
    "token_provider",
]

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
_PATH = "str | os.PathLike[str] | None"


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
    """What a setting accepts.

    allowed  the accepted values, for error messages and documents
    parse    a function (value, whether the name is dotted, so that text counts as a number) -> canonical value
    given    the type of the accepted values, as in an annotation
    value    the type of the canonical values; "": the same
    """

    allowed: str
    parse: Callable[[Any, bool], Any]
    given: str
    value: str = ""

    def has(self, value: Any) -> bool:
        """Return whether this is a canonical value."""
        try:
            parsed = self.parse(value, False)
        except Wrong:
            return False
        return type(parsed) is type(value) and bool(parsed == value)


def number(
    low: int, high: int = INT_MAX, *, fractions: bool = False, infinite: bool = False, also: int | None = None
) -> Kind:
    """Return the kind of a number from `low` to `high`. `also` is allowed too; `infinite`: infinity means `high`."""
    pattern = r"-?[0-9]{1,20}(\.[0-9]{0,9})?" if fractions else r"-?[0-9]{1,20}"

    def parse(value: Any, dotted: bool) -> Any:
        if infinite and isinstance(value, float) and value == math.inf:
            return high
        if isinstance(value, str) and dotted and re.fullmatch(pattern, value.strip(), re.ASCII):
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
    allowed = f"{'a number' if fractions else 'an integer'} from {low} to {high}{other}"
    return Kind(allowed, parse, _number_type(fractions or infinite), _number_type(fractions))


def _number_type(fractions: bool) -> str:
    return "float" if fractions else "int"


def long(low: int, *, fractions: bool = False) -> Kind:
    """Return the kind of one of Java's long values. What does not fit into 31 bits counts as INT_MAX.

    A `low` of -1 allows every negative number, as in Java, which counts as -1.
    """
    every = number(-LONG_MAX - 1 if low < 0 else low, LONG_MAX, fractions=fractions)

    def parse(value: Any, dotted: bool) -> Any:
        return max(low, min(every.parse(value, dotted), INT_MAX))

    return every._replace(parse=parse)


def boolean() -> Kind:
    def parse(value: Any, dotted: bool) -> bool:
        if isinstance(value, str) and dotted and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if not isinstance(value, bool):
            raise Wrong
        return value

    return Kind("True or False", parse, "bool")


def acks() -> Kind:
    known = {"all": -1, "-1": -1, "0": 0, "1": 1}

    def parse(value: Any, dotted: bool) -> int:
        if isinstance(value, bool) or str(value) not in known or not isinstance(value, str | int):
            raise Wrong
        return known[str(value)]

    return Kind('0, 1, or "all" (the same as -1)', parse, "int | str", "int")


def choice(*choices: str, none: bool = False, upper: bool = False) -> Kind:
    def parse(value: Any, dotted: bool) -> str | None:
        if value is None and none:
            return None
        if not isinstance(value, str):
            raise Wrong
        value = value.strip().upper() if upper else value.strip().lower()
        if value not in choices:
            raise Wrong
        return None if none and value == "none" else value

    allowed = "one of " + ", ".join((["None"] if none else []) + [repr(c) for c in choices])
    return Kind(allowed, parse, "str | None" if none else "str")


def client_id() -> Kind:
    def parse(value: Any, dotted: bool) -> str:
        if value is None:
            return "cyproducer"
        if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value.encode()) <= 255:
            raise Wrong
        return value

    return Kind("a str of printable characters, 1 to 255 bytes in UTF-8", parse, "str")


def group() -> Kind:
    def parse(value: Any, dotted: bool) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or not value.isprintable() or len(value) > 255:
            raise Wrong
        return value

    return Kind("a str of up to 255 printable characters", parse, "str")


def rack() -> Kind:
    def parse(value: Any, dotted: bool) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value.encode(errors="replace")) > RACK_BYTES_MAX:
            raise Wrong
        return value

    return Kind(f"a str of at most {RACK_BYTES_MAX} bytes in UTF-8", parse, "str")


def transactional_id() -> Kind:
    def parse(value: Any, dotted: bool) -> str | None:
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

    return Kind(f"None, or a str of 1 to {TRANSACTIONAL_ID_BYTES_MAX} bytes in UTF-8", parse, "str | None")


def serializer() -> Kind:
    def parse(value: Any, dotted: bool) -> Any:
        if value is None:
            return None
        has_method = callable(getattr(value, "serialize", None))
        if isinstance(value, type) and has_method:
            raise Wrong("this is a serializer's class, not an instance")
        if not has_method and not callable(value):
            raise Wrong
        return value

    allowed = "None, a callable, or an object with serialize(topic, headers, data)"
    return Kind(allowed, parse, "_Serializer | None", "Any")


def partitioner() -> Kind:
    def parse(value: Any, dotted: bool) -> Any:
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
        "_Partitioner | None",
        "Any",
    )


def interceptors() -> Kind:
    def parse(value: Any, dotted: bool) -> tuple[Any, ...] | None:
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

    allowed = "None, or a list of objects with on_send(record) or on_acknowledgement(metadata, error)"
    return Kind(allowed, parse, "Sequence[object] | None", "tuple[Any, ...] | None")


def nothing(allowed: str, *empty: Any) -> Kind:
    """Return the kind of a setting that is not supported: None and the values of `empty` mean "not used"."""

    def parse(value: Any, dotted: bool) -> Any:
        return None if value is None or any(type(value) is type(e) and value == e for e in empty) else value

    return Kind(allowed, parse, "object")


def optional(kind: Kind) -> Kind:
    def parse(value: Any, dotted: bool) -> Any:
        return None if value is None else kind.parse(value, dotted)

    return Kind("None, or " + kind.allowed, parse, kind.given + " | None")


def socket_path() -> Kind:
    def parse(value: Any, dotted: bool) -> str | None:
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

    return Kind(f"the path of a sender's socket, at most {_SUN_PATH_MAX} bytes", parse, _PATH, "str | None")


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


def host_port(server: str) -> tuple[str, int]:
    """Return the host and the port of a text such as "host:9092" or "[::1]:9092"."""
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def servers() -> Kind:
    def parse(value: Any, dotted: bool) -> tuple[str, ...]:
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

    return Kind('"host:port", several separated by commas, or a list of them', parse, "_Servers", "tuple[str, ...]")


#: With both names of SOCKS5 the proxy looks up the names of the brokers, which may be known only there.
_PROXY_SCHEMES = {"socks5": "socks5", "socks5h": "socks5", "http": "http"}
#: The package that speaks the protocol of a proxy.
PROXY_LIBRARIES = {"socks5": "socksio", "http": "h11"}


def proxy() -> Kind:
    """Return the kind of the URL of a proxy, without credentials: its scheme, host and port."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        if "@" in value:
            raise Wrong("it contains credentials; give them as proxy_username and proxy_password", "<hidden>")
        scheme, _, place = value.strip().partition("://")
        place = place.removesuffix("/")
        if scheme.lower() not in _PROXY_SCHEMES:
            raise Wrong("the scheme is none of socks5, socks5h and http")
        if "/" in place or not re.search(":[0-9]+$", place):
            raise Wrong("what follows the scheme is not host:port", "<hidden>")
        try:
            return f"{_PROXY_SCHEMES[scheme.lower()]}://{_server(place)}"
        except Wrong as wrong:  # credentials may be a part of it
            raise Wrong(wrong.reason, "<hidden>") from None

    return Kind("None, or socks5://HOST:PORT or http://HOST:PORT", parse, "str | None")


# ---------------------------------------------------------------- TLS and SASL

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
USE_OAUTH_FOR_IAM = (
    "use sasl_mechanism='OAUTHBEARER', and sasl_oauth_token_provider with a token of the package "
    "aws-msk-iam-sasl-signer-python"
)
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_OLD_VERSIONS = ("SSL", "SSLV2", "SSLV3", "TLSV1", "TLSV1.0", "TLSV1.1")
# RFC 7628, as in Kafka (OAuthBearerClientInitialResponse.java).
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


def text(allowed: str = "a str", *, empty: bool = False) -> Kind:
    """Return the kind of a text without NUL. An empty one counts as not given, or as itself with `empty`."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise Wrong
        if "\0" in value:
            raise Wrong("it has a NUL character")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Wrong("it has a surrogate, which UTF-8 cannot express") from None
        return str(value) if value or empty else None

    return Kind("None, or " + allowed, parse, "str | None")


def user() -> Kind:
    plain = text("a str without line breaks")

    def parse(value: Any, dotted: bool) -> str | None:
        parsed: str | None = plain.parse(value, dotted)
        if parsed is not None and ("\n" in parsed or "\r" in parsed):
            raise Wrong("it has a line break; a name that is read from a file often ends with one")
        return parsed

    return plain._replace(parse=parse)


def path(instead: str = "") -> Kind:
    """Return the kind of a file's path. `instead`: the setting for the text of such a file.

    The path becomes absolute: the sender has another working directory.
    """

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str | os.PathLike):
            raise Wrong
        given = os.fspath(value)
        if not isinstance(given, str) or "\0" in given:
            raise Wrong
        if "-----BEGIN" in given:
            raise Wrong(f"this is a text in PEM, not a path; {f'use {instead}' if instead else 'put it into a file'}")
        if given.startswith("~"):
            raise Wrong("~ is not replaced in a path; use os.path.expanduser()")
        return os.path.abspath(given)

    return Kind("None, or the path of a file", parse, _PATH, "str | None")


def pem_text(what: str, labels: tuple[str, ...], instead: str) -> Kind:
    """Return the kind of a text in PEM. `instead`: the setting for the path of a file with such a text."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        if "-----BEGIN" not in value:
            raise Wrong(f"it is not PEM; if it is the path of a file, use {instead}")
        try:
            found = pem.normalised(value)
        except ValueError as error:
            raise Wrong(str(error)) from None
        if not pem.contains(found.encode(), labels):
            raise Wrong(f"it has no {what}")
        if labels is pem.CERTIFICATE and pem.contains(found.encode(), pem.PRIVATE_KEY):
            raise Wrong("it has a private key, which belongs to ssl_keydata")
        return found

    return Kind(f"None, or a text in PEM with a {what}", parse, "str | None")


def store_type() -> Kind:
    """Return the kind of Kafka's type of a store. JKS, Kafka's default, lets the file decide, as in Java."""
    known = ("JKS", "PKCS12", "PEM")

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str) or value.strip().upper() not in known:
            raise Wrong
        return value.strip().upper()

    return Kind("None, 'PKCS12', 'PEM', or JKS, which means None", parse, "str | None")


def hostname_check() -> Kind:
    """Return the kind of ssl_check_hostname, and of Kafka's ssl.endpoint.identification.algorithm."""
    algorithms = {"https": True, "": False, "none": False}
    either = boolean()

    def parse(value: Any, dotted: bool) -> bool:
        if isinstance(value, str) and value.strip().lower() in algorithms:
            return algorithms[value.strip().lower()]
        checked: bool = either.parse(value, dotted)
        return checked

    return Kind("True (Kafka's https), or False (Kafka's empty text)", parse, "bool")


def ciphers() -> Kind:
    plain = text("names of cipher suites, as of Kafka with commas or as of OpenSSL with colons")

    def parse(value: Any, dotted: bool) -> str | None:
        if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
            value = ",".join(value)
        given: str | None = plain.parse(value, dotted)
        if given is None or not given.strip():
            return None
        reason = why_refused(openssl_ciphers(given)) if openssl_ciphers(given).tls12 else ""
        if reason:
            raise Wrong(reason)
        return given

    return plain._replace(parse=parse, given="str | Sequence[str] | None", value="str | None")


def tls_versions() -> Kind:
    def parse(value: Any, dotted: bool) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise Wrong
        names = [name.strip() for name in names if name.strip()]
        found = {_tls_version(name) for name in names}
        # Without a name, Java uses the versions that it enables by default.
        return tuple(name for name in TLS_VERSIONS if name in found or not found)

    return Kind("TLSv1.2, TLSv1.3, or both with a comma or in a list", parse, "str | Sequence[str]", "tuple[str, ...]")


def tls_protocol() -> Kind:
    """Return the kind of Kafka's ssl.protocol: the newest version that can be used."""

    def parse(value: Any, dotted: bool) -> str:
        if not isinstance(value, str):
            raise Wrong
        return TLS_VERSIONS[-1] if value.strip().upper() == "TLS" else _tls_version(value.strip())

    return Kind("TLSv1.3 or TLSv1.2", parse, "str")


def _tls_version(name: str) -> str:
    known = {version.upper(): version for version in TLS_VERSIONS}
    if name.upper() in _OLD_VERSIONS:
        raise Wrong("versions before TLS 1.2 are not secure and cannot be used; remove them")
    if name.upper() not in known:
        raise Wrong
    return known[name.upper()]


def mechanism() -> Kind:
    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        name = value.strip().upper()
        if "," in name or " " in name:
            raise Wrong("a client uses one mechanism")
        if name == "AWS_MSK_IAM":
            raise Wrong(f"brokers of Amazon MSK accept OAUTHBEARER, too; {USE_OAUTH_FOR_IAM}")
        if name not in MECHANISMS:
            raise Wrong
        return name

    return Kind("one of " + ", ".join(repr(name) for name in MECHANISMS), parse, "str | None")


def service_of_broker() -> Kind:
    """Return the kind of kafka-python's sasl_kerberos_name: (service, host) of service@host, or of gssapi.Name."""

    def parse(value: Any, dotted: bool) -> tuple[str, str] | None:
        if value is None or value == "":
            return None
        if type(value).__module__.partition(".")[0] == "gssapi":
            value = str(value)
        if not isinstance(value, str):
            raise Wrong
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)[@/]([A-Za-z0-9_.-]+)", value)
        if found is None:
            raise Wrong("a realm comes from the Kerberos configuration of the host" if value.count("@") else "")
        return found[1], found[2]

    return Kind("None, or a str service@host", parse, "object | None")


def endpoint() -> Kind:
    """Return the kind of the URL of a token endpoint, or of a file with a token."""

    def parse(value: Any, dotted: bool) -> str | None:
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise Wrong
        from urllib.parse import urlsplit  # imported here because most producers have no URL

        url = value.strip()
        try:
            parts = urlsplit(url)
            valid = parts.port is None or parts.port > 0
        except ValueError:
            raise Wrong("it is not a URL", "<hidden>") from None
        if "@" in parts.netloc:
            raise Wrong("it contains credentials (user:password@); remove them", "<hidden>")
        if not url.isprintable() or " " in url or parts.fragment or not valid:
            raise Wrong
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query:
                raise Wrong("a file needs an absolute path: file:///directory/token")
            return f"file://{parts.path}"
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise Wrong
        return url

    return Kind("None, or a URL https://..., http://... or file:///...", parse, "str | None")


def extensions() -> Kind:
    """Return the kind of the SASL extensions of OAUTHBEARER (KIP-342): pairs, sorted by name."""

    def parse(value: Any, dotted: bool) -> tuple[tuple[str, str], ...]:
        if isinstance(value, str):
            value = [each.strip().partition("=")[::2] for each in value.split(",") if each.strip()]
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple):
            raise Wrong
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise Wrong
            if not _EXTENSION_NAME.fullmatch(pair[0]) or pair[0] == "auth":
                raise Wrong("a name has other characters than letters, or is auth")
            if not _EXTENSION_VALUE.fullmatch(pair[1]):
                raise Wrong("a value is empty or has a character that is not in ASCII")
        if len({name for name, _ in pairs}) != len(pairs):
            raise Wrong("a name is given twice")
        return tuple(sorted((str(name), str(content)) for name, content in pairs))

    allowed = "a dict of str to str, or a str name=value,name=value"
    return Kind(allowed, parse, "str | Mapping[str, str]", "tuple[tuple[str, str], ...]")


def fraction(low: float, high: float) -> Kind:
    every = number(0, 1, fractions=True)

    def parse(value: Any, dotted: bool) -> float:
        found = float(every.parse(value, dotted))
        if not low <= found <= high:
            raise Wrong
        return found

    return Kind(f"a number from {low} to {high}", parse, "float")


def provider() -> Kind:
    def parse(value: Any, dotted: bool) -> Any:
        if value is None:
            return None
        try:
            return token_provider(value)
        except TypeError as error:
            raise Wrong(str(error)) from None

    return Kind("None, an object with token(), or a function that returns a token", parse, "object | None", "Any")


# ---------------------------------------------------------------- sources of OAuth tokens


@dataclass(frozen=True, slots=True, repr=False)
class CalledTokenProvider:
    """A provider whose token() calls a function.

    wants_configuration   the function has an argument, as confluent-kafka's `oauth_cb`: the text of
                          `sasl.oauthbearer.config`, which is empty here
    """

    function: Callable[..., Any]
    wants_configuration: bool

    def token(self) -> Any:
        """Return what the function returns: a token, or a tuple that begins with the token and its expiry."""
        return self.function("") if self.wants_configuration else self.function()


def token_provider(value: Any) -> Any:
    """Return an object with token() for such an object or for a function. Raise TypeError for anything else."""
    if isinstance(value, type):
        raise TypeError("this is a provider's class, not an instance")
    if callable(getattr(value, "token", None)):
        return value
    if not callable(value):
        raise TypeError("it has no method token() and cannot be called")
    return CalledTokenProvider(value, _needs_argument(value))


def _needs_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of C have no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in positional and each.default is each.empty for each in parameters)
