"""Checks the settings of TLS together, and those of SASL: producers without both do not import this module.

Kafka's stores and its JAAS configuration are reduced to the settings that the sender uses.
"""

from urllib.parse import unquote, urlsplit

from cyproducer.config import pem
from cyproducer.config.ciphers import TLS13_SUITES, openssl_ciphers
from cyproducer.config.draft import Draft
from cyproducer.config.jaas import JaasError
from cyproducer.config.jaas_modules import login_of
from cyproducer.config.kinds import TLS_VERSIONS
from cyproducer.config.secrets import ConcealedBytes
from cyproducer.config.table import SECURITY_BY_NAME
from cyproducer.errors import KafkaConfigurationError

__all__ = ["apply_sasl", "apply_tls"]

_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_CONVERT = "keytool -importkeystore -srckeystore OLD.jks -destkeystore NEW.p12 -deststoretype PKCS12"


def apply_tls(draft: Draft) -> None:
    """Apply the rules of TLS. Raise KafkaConfigurationError."""
    _apply_versions(draft)
    _apply_ciphers(draft)
    _apply_truststore(draft)
    _apply_keystore(draft)
    draft.at_most_one("ssl_cafile", "ssl_cadata", "ssl_truststore_location")
    draft.at_most_one("ssl_certfile", "ssl_certdata", "ssl_keystore_location")
    _check_pairs(draft)
    if draft.get("ssl_cafile"):
        _check_authorities(draft, "ssl_cafile")
    if draft.get("ssl_crlfile"):
        content = draft.read("ssl_crlfile")
        if content is not None and not pem.contains(content, pem.REVOCATION_LIST):
            raise KafkaConfigurationError(
                f"{draft.place('ssl_crlfile')}: the file has no revocation list in PEM; "
                "convert a list in DER with openssl crl -inform DER"
            )
    _check_key(draft)


# ---------------------------------------------------------------- versions and ciphers


def _apply_versions(draft: Draft) -> None:
    newest = draft.values.pop("ssl_protocol", TLS_VERSIONS[-1])
    if newest == TLS_VERSIONS[-1]:
        return
    chosen = draft.get("ssl_enabled_protocols") or TLS_VERSIONS
    if newest not in chosen:
        raise KafkaConfigurationError(
            f"{draft.name('ssl_protocol')}={newest!r} contradicts {draft.name('ssl_enabled_protocols')}="
            f"{','.join(chosen)!r}; leave one of them out"
        )
    draft.values["ssl_enabled_protocols"] = (newest,)


def _apply_ciphers(draft: Draft) -> None:
    """Replace the names of IANA by a cipher string of OpenSSL for TLS 1.2, and by versions that can be used."""
    if not draft.get("ssl_ciphers"):
        return
    ciphers = openssl_ciphers(draft.values.pop("ssl_ciphers"))
    versions = draft.get("ssl_enabled_protocols") or TLS_VERSIONS
    if ciphers.iana:
        having = ((TLS_VERSIONS[0], ciphers.tls12), (TLS_VERSIONS[1], ciphers.tls13))
        usable = tuple(version for version, suites in having if suites and version in versions)
        if not usable:
            raise KafkaConfigurationError(
                f"{draft.name('ssl_ciphers')} has no suite for {draft.name('ssl_enabled_protocols')}="
                f"{','.join(versions)!r}; add a suite or a version"
            )
        draft.values["ssl_enabled_protocols"] = versions = usable
        if ciphers.tls13 and set(ciphers.tls13) != set(TLS13_SUITES):
            draft.notes.append(
                f"{draft.name('ssl_ciphers')} cannot choose among the suites of TLS 1.3: all that OpenSSL enables "
                "are offered"
            )
    if ciphers.tls12 and TLS_VERSIONS[0] in versions:
        draft.values["ssl_ciphers"] = ciphers.tls12


# ---------------------------------------------------------------- stores


def _apply_truststore(draft: Draft) -> None:
    """Leave a truststore of the type PKCS12 only. One of the type PEM is ssl_cafile."""
    if _type_of_store(draft, "ssl_truststore", "ssl_cadata") == "PEM":
        draft.move("ssl_truststore_location", "ssl_cafile")


def _apply_keystore(draft: Draft) -> None:
    """Leave a keystore of the type PKCS12 only, with its password. One of the type PEM is ssl_certfile."""
    if _type_of_store(draft, "ssl_keystore", "ssl_certdata") == "PEM":
        draft.move("ssl_keystore_location", "ssl_certfile")
    if not draft.get("ssl_keystore_location"):
        return
    keys = draft.given("ssl_keyfile", "ssl_keydata")
    if keys:
        raise KafkaConfigurationError(
            f"{draft.names(keys)} contradicts {draft.name('ssl_keystore_location')}, which has the key; "
            "leave one of them out"
        )
    password = draft.values.pop("ssl_password", None)
    own = draft.get("ssl_keystore_password")
    if own is None and password is None and draft.complete:
        raise KafkaConfigurationError(
            f"{draft.name('ssl_keystore_location')} needs ssl_keystore_password, the password of the file"
        )
    if own is not None and password is not None and own != password:
        raise KafkaConfigurationError(
            f"{draft.name('ssl_password')} differs from {draft.name('ssl_keystore_password')}: a PKCS#12 file has one "
            "password; leave ssl_password out"
        )
    if own is None and password is not None:
        draft.values["ssl_keystore_password"] = password


def _type_of_store(draft: Draft, store: str, data: str) -> str:
    """Return the type of a store, PEM or PKCS12; "" if there is none. Its settings remain only for PKCS12."""
    location, password, kind = f"{store}_location", f"{store}_password", f"{store}_type"
    wanted = draft.values.pop(kind, None)
    if not draft.get(location):
        if draft.get(password) is not None and draft.complete:
            raise KafkaConfigurationError(f"{draft.name(password)} needs {location}; leave it out, or give the file")
        if draft.get(data) and wanted not in (None, "PEM"):
            raise KafkaConfigurationError(
                f"{draft.name(data)} contradicts {draft.name(kind)}={wanted!r}: a text can be only PEM; "
                "leave the type out"
            )
        return ""
    # Without the file, its type cannot be known, unless it was given.
    content = draft.peek(location) if not draft.files and wanted is None else draft.read(location)
    found = wanted if content is None else _format(content)
    if found == "JKS" and content is not None:
        raise KafkaConfigurationError(
            f"{draft.place(location)}: files of the type JKS cannot be read; convert it: {_CONVERT}"
        )
    if not found and content is not None:
        raise KafkaConfigurationError(f"{draft.place(location)}: the file is neither PEM nor PKCS#12")
    # Java, too, reads a file of the type PKCS12 if the type is JKS, its default.
    if content is not None and (wanted == "PEM") != (found == "PEM") and wanted is not None:
        raise KafkaConfigurationError(
            f"{draft.place(location)}: the file is {found}, which contradicts {draft.name(kind)}={wanted!r}; "
            "leave the type out"
        )
    if found == "PEM":
        if draft.get(password) is not None:
            raise KafkaConfigurationError(
                f"{draft.name(password)} contradicts {draft.name(location)}: a file in PEM has no password of its own; "
                "leave it out, and use ssl_password for an encrypted key"
            )
        return found
    if found is not None:
        draft.values[kind] = "PKCS12"
    return "PKCS12"


def _format(content: bytes) -> str:
    """Return PEM, PKCS12 or JKS; "" for other files."""
    if content.startswith(_JKS):
        return "JKS"
    if pem.is_pem(content):
        return "PEM"
    # PFX (RFC 7292): a sequence that begins with the integer 3. The length has up to 5 bytes.
    if content[:1] == b"\x30" and b"\x02\x01\x03" in content[2:9]:
        return "PKCS12"
    return ""


# ---------------------------------------------------------------- certificates and keys


def _check_authorities(draft: Draft, name: str) -> None:
    """Raise KafkaConfigurationError if the file of a setting has no certificate in PEM."""
    content = draft.read(name)
    if content is None or pem.contains(content, pem.CERTIFICATE):
        return
    found = _format(content)
    if found == "JKS":
        advice = f"it is a file of the type JKS; convert it: {_CONVERT}"
    elif found == "PKCS12":
        advice = "it is a PKCS#12 file; convert it: openssl pkcs12 -nokeys -in OLD.p12 -out NEW.pem"
    else:
        advice = "convert a certificate in DER: openssl x509 -inform DER"
    if found and name == "ssl_cafile":
        advice += (
            ", or give it as ssl_truststore_location"
            if found == "PKCS12"
            else "; give the new file as ssl_truststore_location"
        )
    raise KafkaConfigurationError(f"{draft.place(name)}: the file has no certificate in PEM; {advice}")


def _check_pairs(draft: Draft) -> None:
    """Check that certificate and key are both there, and both files or both texts."""
    draft.at_most_one("ssl_keyfile", "ssl_keydata")
    if not draft.complete:
        return
    for certificate, key, other in (
        ("ssl_certfile", "ssl_keyfile", "ssl_certdata"),
        ("ssl_certdata", "ssl_keydata", "ssl_certfile"),
    ):
        if draft.get(key) and draft.get(other):
            raise KafkaConfigurationError(
                f"{draft.names((other, key))} do not go together; give both as files or both as texts"
            )
        if draft.get(key) and not draft.get(certificate):
            raise KafkaConfigurationError(f"{draft.name(key)} needs {certificate}, the certificate of the key")
    if draft.get("ssl_certdata") and not draft.get("ssl_keydata"):
        raise KafkaConfigurationError(f"{draft.name('ssl_certdata')} needs ssl_keydata, the key of the certificate")


def _check_key(draft: Draft) -> None:
    """Check that there is a key for the certificate, and a password if the key needs one."""
    key = None
    if draft.get("ssl_certfile"):
        chain = draft.read("ssl_certfile")
        if chain is not None and not pem.contains(chain, pem.CERTIFICATE):
            advice = "; it is a PKCS#12 file: use ssl_keystore_location" if _format(chain) == "PKCS12" else ""
            raise KafkaConfigurationError(f"{draft.place('ssl_certfile')}: the file has no certificate in PEM{advice}")
        key = draft.read("ssl_keyfile") if draft.get("ssl_keyfile") else chain
        if key is not None and not pem.contains(key, pem.PRIVATE_KEY):
            where = "ssl_keyfile" if draft.get("ssl_keyfile") else "ssl_certfile"
            advice = "" if where == "ssl_keyfile" else "; give the file with the key as ssl_keyfile"
            raise KafkaConfigurationError(f"{draft.place(where)}: the file has no private key in PEM{advice}")
    elif draft.get("ssl_keydata"):
        key = ConcealedBytes(draft.values["ssl_keydata"].encode())
    elif draft.complete:
        draft.without_effect(("ssl_password",), "without a private key")
    if key is not None and pem.is_encrypted(key) and draft.get("ssl_password") is None and draft.complete:
        raise KafkaConfigurationError("the private key is encrypted and needs ssl_password")


# ---------------------------------------------------------------- SASL

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
        _check_authorities(draft, "https_ca_location")


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
