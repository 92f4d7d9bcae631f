"""Checks the settings of TLS together, and reduces Kafka's stores to the settings that the sender uses."""

from cyproducer.config import pem
from cyproducer.config.ciphers import TLS13_SUITES, openssl_ciphers
from cyproducer.config.concealed import ConcealedBytes
from cyproducer.config.draft import Draft
from cyproducer.config.security_kinds import TLS_VERSIONS
from cyproducer.errors import KafkaConfigurationError

__all__ = ["apply_tls", "check_authorities"]

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
        check_authorities(draft, "ssl_cafile")
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


def check_authorities(draft: Draft, name: str) -> None:
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
