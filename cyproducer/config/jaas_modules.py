"""Converts the login module of Kafka's `sasl.jaas.config` to the settings of its mechanism."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from cyproducer.config.jaas import JaasError, Module, parse_jaas
from cyproducer.config.kinds import USE_OAUTH_FOR_IAM, Wrong
from cyproducer.config.secrets import ConcealedText
from cyproducer.config.table import SECURITY_BY_NAME

__all__ = ["Login", "login_of"]

_KAFKA = "org.apache.kafka.common.security."
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_IAM = "software.amazon.msk.auth.iam.IAMLoginModule"
#: Options of Krb5LoginModule that concern only Java's own implementation of Kerberos.
_JAVA_ONLY = frozenset(
    {"useKeyTab", "useTicketCache", "storeKey", "renewTGT", "doNotPrompt", "refreshKrb5Config", "isInitiator", "debug",
     "useFirstPass", "tryFirstPass", "storePass", "clearPass"}
)  # fmt: skip
_CLIENT = "sasl_oauthbearer_client_credentials_client"
#: Options of OAuthBearerLoginModule: those of Kafka, and those of Strimzi's client.
_OAUTH = {
    "clientId": _CLIENT + "_id",
    "clientSecret": _CLIENT + "_secret",
    "scope": "sasl_oauthbearer_scope",
    "ssl.truststore.location": "https_ca_location",
    "oauth.client.id": _CLIENT + "_id",
    "oauth.client.secret": _CLIENT + "_secret",
    "oauth.scope": "sasl_oauthbearer_scope",
    "oauth.token.endpoint.uri": "sasl_oauthbearer_token_endpoint_url",
    "oauth.ssl.truststore.location": "https_ca_location",
}
_PEM_TYPES = ("ssl.truststore.type", "oauth.ssl.truststore.type")
_EXTENSION = "extension_"
#: A name that may be shown: that of an option of Kafka or Strimzi, so no part of a secret without quotes.
_KNOWN_FAMILY = re.compile(r"(ssl|oauth|sasl)(\.[a-z]{1,12}){1,5}|unsecuredLogin[A-Za-z]{1,20}(_[a-z]{1,12})?")


class Login(NamedTuple):
    """What a JAAS configuration says.

    mechanisms   the mechanisms that the module is for
    settings     the canonical values of settings
    notes        warnings
    """

    mechanisms: tuple[str, ...]
    settings: dict[str, Any]
    notes: list[str]


def login_of(text: str) -> Login:
    """Return what the text of `sasl.jaas.config` says. Raise JaasError, whose message has no secret."""
    modules = parse_jaas(text)
    if len(modules) > 1:
        raise JaasError(f"it has {len(modules)} login modules; a client uses one")
    module = modules[0]
    for name, mechanisms, convert in _MODULES:
        # Some platforms rename Kafka's classes, as kafkashaded.org.apache.kafka (Databricks).
        if module.name == name or module.name.endswith("." + name):
            settings, notes = convert(module)
            return Login(mechanisms, settings, notes)
    if module.name == _IAM:
        raise JaasError(f"IAMLoginModule is a class of Java; {USE_OAUTH_FOR_IAM}")
    known = ", ".join(name.rpartition(".")[2] for name, _, _ in _MODULES)
    raise JaasError(f"its login module is none of {known}; classes of Java cannot be loaded")


_Converted = tuple[dict[str, Any], list[str]]


def _plain(module: Module) -> _Converted:
    found = {}
    for option in ("username", "password"):
        if module.options.get(option):
            found[f"sasl_plain_{option}"] = _parsed(option, f"sasl_plain_{option}", module.options[option])
    return found, _without_effect(set(module.options) - {"username", "password"})


def _scram(module: Module) -> _Converted:
    options = dict(module.options)
    if options.pop("tokenauth", "false").lower() != "false":
        raise JaasError("delegation tokens (tokenauth) are not supported; use a user and a password")
    return _plain(Module(module.name, options))


def _kerberos(module: Module) -> _Converted:
    options = module.options
    keytab = options.get("keyTab") if options.get("useKeyTab", "true").lower() != "false" else None
    cache = options.get("ticketCache") if options.get("useTicketCache", "true").lower() != "false" else None
    if options.get("useKeyTab", "").lower() == "true" and not keytab:
        raise JaasError("useKeyTab needs keyTab, the path of the file")
    found: dict[str, Any] = {}
    for option, setting, value in (
        ("keyTab", "sasl_kerberos_keytab", keytab and keytab.removeprefix("FILE:")),
        # Java prefers the cache. A keytab works without a ticket that somebody else gets.
        ("ticketCache", "sasl_kerberos_ticket_cache", None if keytab else cache),
        ("principal", "sasl_kerberos_principal", options.get("principal")),
        ("serviceName", "sasl_kerberos_service_name", options.get("serviceName")),
    ):
        if value:
            found[setting] = _parsed(option, setting, value)
    return found, _without_effect(set(options) - _JAVA_ONLY - {"keyTab", "ticketCache", "principal", "serviceName"})


def _oauth(module: Module) -> _Converted:
    found: dict[str, Any] = {}
    extensions = {}
    for option, value in module.options.items():
        if option.startswith(_EXTENSION):
            extensions[option.removeprefix(_EXTENSION)] = value
        elif option in _OAUTH:
            if _OAUTH[option] in found:
                raise JaasError("an option is given twice, once with Strimzi's name")
            if value:
                found[_OAUTH[option]] = _parsed(option, _OAUTH[option], value)
        elif option not in _PEM_TYPES or value.strip().upper() != "PEM":
            shown = option if _KNOWN_FAMILY.fullmatch(option) else "one of its options"
            raise JaasError(
                f"{shown} is not supported; use clientId, clientSecret, scope, extension_NAME, and a truststore in PEM"
            )
    if extensions:
        setting = "sasl_oauthbearer_extensions"
        found[setting] = _parsed("extension_NAME", setting, extensions)
    return found, []


def _without_effect(options: set[str]) -> list[str]:
    # The names are not shown: a password without quotes can look like the name of an option.
    return [f"{len(options)} of the options of sasl_jaas_config have no effect"] if options else []


def _parsed(option: str, setting: str, value: Any) -> Any:
    """Return the canonical value of the setting. Raise JaasError."""
    kind = SECURITY_BY_NAME[setting].kind
    try:
        parsed = kind.parse(value, True)
        return ConcealedText(parsed) if SECURITY_BY_NAME[setting].secret else parsed
    except Wrong as wrong:
        raise JaasError(f"{option}: {f'{wrong.reason}; ' if wrong.reason else ''}expected {kind.allowed}") from None


_MODULES: tuple[tuple[str, tuple[str, ...], Callable[[Module], _Converted]], ...] = (
    (_KAFKA + "plain.PlainLoginModule", ("PLAIN",), _plain),
    (_KAFKA + "scram.ScramLoginModule", ("SCRAM-SHA-256", "SCRAM-SHA-512"), _scram),
    (_KAFKA + "oauthbearer.OAuthBearerLoginModule", ("OAUTHBEARER",), _oauth),
    (_KERBEROS, ("GSSAPI",), _kerberos),
)
