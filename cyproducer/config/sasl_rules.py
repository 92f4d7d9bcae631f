"""Checks the settings of SASL together: the mechanism, its credentials, and the source of OAuth tokens."""

from urllib.parse import unquote, urlsplit

from cyproducer.config.draft import Draft
from cyproducer.config.jaas import JaasError
from cyproducer.config.jaas_modules import login_of
from cyproducer.config.security_table import SECURITY_BY_NAME
from cyproducer.config.tls_rules import check_authorities
from cyproducer.errors import KafkaConfigurationError

__all__ = ["apply_sasl"]

#: The settings of each mechanism, by the beginnings of their names. PLAIN stands for SCRAM too.
_BEGINNINGS = {
    "PLAIN": ("sasl_plain_",),
    "GSSAPI": ("sasl_kerberos_",),
    "OAUTHBEARER": ("sasl_oauth", "sasl_login_", "https_ca_location"),
}
_SCRAM = "SCRAM-"
_CLIENT_ID = "sasl_oauthbearer_client_credentials_client_id"
_CLIENT_SECRET = "sasl_oauthbearer_client_credentials_client_secret"
_URL = "sasl_oauthbearer_token_endpoint_url"
_PROVIDER = "sasl_oauth_token_provider"
_PRINCIPAL = "sasl_oauth_principal"


def apply_sasl(draft: Draft, protocol: str | None) -> None:
    """Apply the rules of SASL. Raise KafkaConfigurationError.

    protocol   the security protocol, which has SASL; None: that of the sender that is named
    """
    mechanisms = _apply_jaas(draft)
    _apply_kerberos_name(draft)
    mechanism = draft.get("sasl_mechanism")
    if mechanism is None and (mechanisms == ("GSSAPI",) or _has_kerberos_credentials(draft)):
        mechanism = draft.values["sasl_mechanism"] = SECURITY_BY_NAME["sasl_mechanism"].default
    if mechanism is None:
        if draft.complete:
            raise KafkaConfigurationError(
                f"security_protocol={protocol!r} needs sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or "
                "OAUTHBEARER. Kafka's default is GSSAPI (Kerberos): set it if you want to use the ticket of kinit"
            )
        return
    if mechanisms and mechanism not in mechanisms:
        raise KafkaConfigurationError(
            f"the login module of {draft.name('sasl_jaas_config')} is for {' and '.join(mechanisms)}, and "
            f"{draft.name('sasl_mechanism')} is {mechanism!r}; make them agree"
        )
    group = "PLAIN" if mechanism.startswith(_SCRAM) else mechanism
    for other, beginnings in _BEGINNINGS.items():
        if other != group:
            names = [name for name in draft.values if name.startswith(beginnings)]
            draft.without_effect(names, f"with {draft.name('sasl_mechanism')}={mechanism!r}")
    {"PLAIN": _check_password, "GSSAPI": _check_kerberos, "OAUTHBEARER": _check_tokens}[group](draft, mechanism)
    if protocol == "SASL_PLAINTEXT" and mechanism in ("PLAIN", "OAUTHBEARER"):
        what = "password" if mechanism == "PLAIN" else "token"
        draft.notes.append(
            f"{draft.name('sasl_mechanism')}={mechanism!r} sends the {what} without encryption over "
            f"security_protocol={protocol!r}; use SASL_SSL"
        )


def _apply_jaas(draft: Draft) -> tuple[str, ...]:
    """Replace sasl_jaas_config by the settings that it has. Return the mechanisms of its login module."""
    text = draft.values.pop("sasl_jaas_config", None)
    if text is None:
        return ()
    spelling, reason = draft.name("sasl_jaas_config"), ""
    try:
        login = login_of(text)
    except JaasError as error:
        reason = str(error)
    if reason:
        raise KafkaConfigurationError(f"{spelling}=<hidden>: {reason}")
    for name, value in login.settings.items():
        # As in Kafka, the service may be in both places.
        if draft.get(name) is not None and not (name == "sasl_kerberos_service_name" and draft.get(name) == value):
            raise KafkaConfigurationError(
                f"{name} is given twice, in {spelling} and as {draft.name(name)!r}; leave one of them out"
            )
        draft.values[name] = value
    draft.notes += login.notes
    return login.mechanisms


def _apply_kerberos_name(draft: Draft) -> None:
    name = draft.values.pop("sasl_kerberos_name", None)
    if name is None:
        return
    # kafka-python uses this name and not the other two settings, and passes the default of one of them.
    for setting, value in zip(("sasl_kerberos_service_name", "sasl_kerberos_domain_name"), name, strict=True):
        if draft.get(setting) not in (None, SECURITY_BY_NAME[setting].default, value):
            raise KafkaConfigurationError(
                f"{draft.name('sasl_kerberos_name')} contradicts {draft.name(setting)}; leave one of them out"
            )
        draft.values[setting] = value


# ---------------------------------------------------------------- mechanisms


def _check_password(draft: Draft, mechanism: str) -> None:
    missing = [name for name in ("sasl_plain_username", "sasl_plain_password") if draft.get(name) is None]
    if missing and draft.complete:
        raise KafkaConfigurationError(f"{draft.name('sasl_mechanism')}={mechanism!r} needs {' and '.join(missing)}")
    password = draft.get("sasl_plain_password")
    if password is not None and password[-1] in "\r\n":
        draft.notes.append(f"{draft.name('sasl_plain_password')} ends with a line break, as the content of a file does")


def _has_kerberos_credentials(draft: Draft) -> bool:
    return bool(draft.given("sasl_kerberos_keytab", "sasl_kerberos_principal", "sasl_kerberos_ticket_cache"))


def _check_kerberos(draft: Draft, mechanism: str) -> None:
    draft.at_most_one("sasl_kerberos_keytab", "sasl_kerberos_ticket_cache")
    if not draft.get("sasl_kerberos_keytab"):
        return
    if not draft.get("sasl_kerberos_principal") and draft.complete:
        raise KafkaConfigurationError(
            f"{draft.name('sasl_kerberos_keytab')} needs sasl_kerberos_principal, the name of the client in the file"
        )
    draft.read("sasl_kerberos_keytab")


# ---------------------------------------------------------------- OAUTHBEARER


def _check_tokens(draft: Draft, mechanism: str) -> None:
    draft.at_most_one(_PROVIDER, _URL)
    url, credentials = draft.get(_URL), draft.given(_CLIENT_ID, _CLIENT_SECRET)
    scheme = urlsplit(url).scheme if url else ""
    if draft.get(_PROVIDER) is not None or scheme == "file":
        names = [
            *credentials, *draft.given("sasl_oauthbearer_scope", "https_ca_location"),
            "sasl_oauthbearer_header_urlencode", "sasl_login_connect_timeout_ms", "sasl_login_read_timeout_ms",
        ]  # fmt: skip
        draft.without_effect(names, f"with {draft.name(_URL) if scheme else draft.name(_PROVIDER)}")
    if scheme:
        draft.without_effect((_PRINCIPAL,), f"with {draft.name(_URL)}")
    if scheme == "file":
        _check_token_file(draft, url)
    elif draft.complete:
        _check_endpoint(draft, url, scheme, credentials)
    if draft.get("https_ca_location"):
        check_authorities(draft, "https_ca_location")


def _check_endpoint(draft: Draft, url: str | None, scheme: str, credentials: list[str]) -> None:
    if url is None:
        if draft.given(_CLIENT_ID, _CLIENT_SECRET):
            raise KafkaConfigurationError(f"{draft.names(credentials)} needs {_URL}, where tokens are requested")
        if draft.get(_PROVIDER) is None and draft.tokens:
            raise KafkaConfigurationError(
                f"{draft.name('sasl_mechanism')}='OAUTHBEARER' needs a source of tokens: sasl_oauth_token_provider, or "
                f"{_URL} with {_CLIENT_ID} and {_CLIENT_SECRET}"
            )
        return
    missing = [name for name in (_CLIENT_ID, _CLIENT_SECRET) if name not in credentials]
    if missing:
        raise KafkaConfigurationError(f"{draft.name(_URL)} needs {' and '.join(missing)}")
    if scheme == "http":
        draft.notes.append(
            f"{draft.name(_URL)} begins with http: the client's secret and the token are sent without encryption"
        )
        draft.without_effect(("https_ca_location",), "with http")


def _check_token_file(draft: Draft, url: str) -> None:
    """Check that the file with the token can be read."""
    values = {**draft.values, _URL: unquote(urlsplit(url).path)}
    reader = Draft(values, draft.spelled, files=draft.files)
    content = reader.read(_URL)
    if content is not None and not content.strip():
        raise KafkaConfigurationError(f"{reader.place(_URL)}: the file with the token is empty")
