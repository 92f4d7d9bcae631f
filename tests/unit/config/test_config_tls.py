"""Tests the settings of TLS: trust, certificates, stores, versions, ciphers, and the rules between them."""

import copy
import json
import os
import pickle

import pytest
from security_samples import PASSWORD, changed, in_one_line, parse, refused, round_trip

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError


def tls(**given):
    return parse(security_protocol="SSL", **given)


def tls_refused(**given):
    return refused(security_protocol="SSL", **given)


# ---------------------------------------------------------------- whom to trust


def test_without_settings_the_system_decides(caplog):
    settings = tls()
    assert changed(settings) == {} and settings.secrets() == {}
    assert (settings.ssl_check_hostname, settings.ssl_enabled_protocols) == (True, ("TLSv1.2", "TLSv1.3"))
    assert not caplog.records


def test_authorities_as_a_file(samples, tmp_path, monkeypatch):
    assert changed(tls(ssl_cafile=samples("ca.pem"))) == {"ssl_cafile": samples("ca.pem")}
    monkeypatch.chdir(tmp_path)
    assert tls(ssl_cafile="ca.pem").ssl_cafile == samples("ca.pem")
    assert tls(ssl_cafile=tmp_path / "ca.pem").ssl_cafile == samples("ca.pem")
    assert tls(ssl_cafile="").ssl_cafile is None


@pytest.mark.parametrize("write", [str, in_one_line, lambda pem: pem.replace("\n", "\\n"), lambda pem: f"x\n{pem}y"])
def test_authorities_as_a_text_in_any_layout(samples, write):
    assert tls(ssl_cadata=write(samples.certificate)).ssl_cadata == samples.certificate


def test_authorities_as_a_text_that_is_none(samples):
    assert "if it is the path of a file, use ssl_cafile" in tls_refused(ssl_cadata=samples("ca.pem"))
    assert "it has no certificate" in tls_refused(ssl_cadata=samples.key)
    assert "is missing or not complete" in tls_refused(ssl_cadata=samples.certificate[:-30])
    assert "not in Base64" in tls_refused(ssl_cadata=samples.certificate.replace("M", "!", 1))
    assert "it has a private key, which belongs to ssl_keydata" in tls_refused(
        ssl_cadata=samples.certificate + samples.key
    )
    assert "ssl_cadata=<hidden>: expected" in tls_refused(ssl_cadata=5)


@pytest.mark.parametrize(
    "given",
    [
        {"ssl_cafile": "ca.pem", "ssl.truststore.location": "store.p12"},
        {"ssl_cafile": "ca.pem", "ssl.truststore.location": "ca.pem"},
        {"ssl_cafile": "ca.pem", "ssl_cadata": ""},
        {"ssl.truststore.location": "ca.pem", "ssl.truststore.certificates": ""},
        {"ssl.truststore.location": "store.p12", "ssl.ca.pem": ""},
    ],
)
def test_two_sources_of_authorities_contradict(samples, given):
    message = tls_refused(**{name: samples(value) if value else samples.certificate for name, value in given.items()})
    assert message == f"{' and '.join(given)} exclude each other; leave out all but one" or message == (
        f"{' and '.join(reversed(given))} exclude each other; leave out all but one"
    )


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "file", "reason"),
    [
        ("ssl_cafile", "missing.pem", "the file cannot be read (No such file or directory)"),
        ("ssl_cafile", "", "it is a directory"),
        ("ssl_cafile", "text", "the file has no certificate in PEM; convert a certificate in DER"),
        ("ssl_cafile", "certificate.der", "openssl x509 -inform DER"),
        ("ssl_cafile", "key.pem", "the file has no certificate in PEM"),
        ("ssl_cafile", "store.p12", "or give it as ssl_truststore_location"),
        ("ssl_cafile", "store.jks", "-deststoretype PKCS12; give the new file as ssl_truststore_location"),
        ("ssl_certfile", "ca.pem", "the file has no private key in PEM; give the file with the key as ssl_keyfile"),
        ("ssl_certfile", "key.pem", "the file has no certificate in PEM"),
        ("ssl_certfile", "store.p12", "it is a PKCS#12 file: use ssl_keystore_location"),
        ("ssl_crlfile", "ca.pem", "the file has no revocation list in PEM"),
        ("ssl_truststore_location", "store.jks", "keytool -importkeystore"),
        ("ssl_truststore_location", "store.jceks", "keytool -importkeystore"),
        ("ssl_truststore_location", "text", "the file is neither PEM nor PKCS#12"),
        ("ssl_truststore_location", "certificate.der", "the file is neither PEM nor PKCS#12"),
        ("ssl_truststore_location", "missing", "No such file"),
        ("ssl_keystore_location", "store.jks", "-deststoretype PKCS12"),
        ("ssl_keystore_location", "ca.pem", "the file has no private key in PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(samples, name, file, reason):
    message = tls_refused(**{name: samples(file)})
    assert message.startswith(f"{name}={os.path.normpath(samples(file))!r}: "), message
    assert reason in message


def test_the_users_spelling_is_in_the_message(samples):
    assert tls_refused(**{"ssl.ca.location": samples("none")}).startswith("ssl.ca.location=")
    assert tls_refused(**{"ssl.keystore.location": samples("ca.pem")}).startswith("ssl.keystore.location=")
    assert "ssl.keystore.location needs ssl_keystore_password" in tls_refused(
        **{"ssl.keystore.location": samples("store.p12")}
    )


def test_a_file_without_permission_is_named(samples, monkeypatch):
    def no_permission(*arguments):
        raise PermissionError(13, "Permission denied")

    path = samples("ca.pem")
    with monkeypatch.context() as patched:  # what follows the test opens files, too
        patched.setattr("builtins.open", no_permission)
        told = tls_refused(ssl_cafile=path)
    assert f"(Permission denied); give the path of a file that exists and that user {os.geteuid()}" in told


def test_a_named_pipe_is_not_opened(samples):
    os.mkfifo(samples("pipe"))
    assert "it is not a regular file" in tls_refused(ssl_cafile=samples("pipe"))


def test_a_path_that_is_none(samples):
    assert "~ is not replaced in a path" in tls_refused(ssl_cafile="~/ca.pem")
    assert "this is a text in PEM, not a path; use ssl_cadata" in tls_refused(ssl_cafile=samples.certificate)
    message = tls_refused(ssl_keyfile=samples.key)
    assert "use ssl_keydata" in message and samples.key[40:60] not in message
    for value in (5, b"/x", "a\0b", ["x"]):
        assert "expected None, or the path of a file" in tls_refused(ssl_cafile=value)


def test_a_path_that_may_be_a_secret_is_not_shown(samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tls_refused(ssl_cafile="hunter2").startswith("ssl_cafile: the file cannot be read")
    assert tls_refused(ssl_cafile="hunter2/x").startswith("ssl_cafile: the file cannot be read")
    certificate = {"ssl_certfile": samples("ca.pem"), "ssl_keyfile": samples("encrypted.pem")}
    assert "hunter2" not in tls_refused(**certificate, ssl_password="hunter2", ssl_crlfile=samples("hunter2"))


# ---------------------------------------------------------------- the certificate of the client


def test_certificate_and_key_as_files(samples):
    assert changed(tls(ssl_certfile=samples("both.pem"))) == {"ssl_certfile": samples("both.pem")}
    given = {"ssl_certfile": samples("ca.pem"), "ssl_keyfile": samples("key.pem")}
    assert changed(tls(**given)) == given
    for key in ("encrypted.pem", "traditional.pem"):
        given = {"ssl_certfile": samples("ca.pem"), "ssl_keyfile": samples(key)}
        assert tls_refused(**given) == "the private key is encrypted and needs ssl_password"
        assert changed(tls(**given, ssl_password=PASSWORD)) == {**given, "ssl_password": PASSWORD}


def test_certificate_and_key_as_texts(samples):
    given = {"ssl_certdata": in_one_line(samples.certificate), "ssl_keydata": in_one_line(samples.key)}
    settings = tls(**given)
    assert changed(settings) == {"ssl_certdata": samples.certificate, "ssl_keydata": samples.key}
    assert settings.secrets() == {"ssl_keydata": samples.key}
    given["ssl_keydata"] = samples.encrypted_key
    assert "needs ssl_password" in tls_refused(**given)
    assert tls(**given, ssl_password=PASSWORD).secrets() == {
        "ssl_keydata": samples.encrypted_key,
        "ssl_password": PASSWORD,
    }
    with open(samples("traditional.pem")) as file:
        traditional = file.read()
    assert tls(**{**given, "ssl_keydata": traditional}, ssl_password="x").ssl_keydata == traditional


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["ssl_keyfile"], "ssl_keyfile needs ssl_certfile, the certificate of the key"),
        (["ssl_keydata"], "ssl_keydata needs ssl_certdata, the certificate of the key"),
        (["ssl_certdata"], "ssl_certdata needs ssl_keydata, the key of the certificate"),
        (["ssl_certfile", "ssl_keydata"], "ssl_certfile and ssl_keydata do not go together; give both as files"),
        (["ssl_certdata", "ssl_keyfile"], "ssl_certdata and ssl_keyfile do not go together"),
        (["ssl_certfile", "ssl_keyfile", "ssl_keydata"], "ssl_keyfile and ssl_keydata exclude each other"),
        (["ssl_certfile", "ssl_certdata", "ssl_keyfile"], "ssl_certfile and ssl_certdata exclude each other"),
        (["ssl_certfile", "ssl_keystore_location"], "ssl_certfile and ssl_keystore_location exclude each other"),
        (["ssl_keystore_location", "ssl_keyfile"], "ssl_keyfile contradicts ssl_keystore_location, which has the key"),
    ],
)
def test_incomplete_and_contradicting_certificates(samples, names, message):
    values = {
        "ssl_certfile": samples("ca.pem"),
        "ssl_keyfile": samples("key.pem"),
        "ssl_certdata": samples.certificate,
        "ssl_keydata": samples.key,
        "ssl_keystore_location": samples("store.p12"),
    }
    more = {"ssl_keystore_password": PASSWORD} if "ssl_keystore_location" in names else {}
    assert message in tls_refused(**{name: values[name] for name in names}, **more)


def test_a_password_without_a_key_has_no_effect(caplog):
    assert tls(ssl_password=PASSWORD).secrets() == {}
    assert "ssl_password has no effect without a private key" in caplog.text


# ---------------------------------------------------------------- stores


@pytest.mark.parametrize("kind", [{}, {"type": "PKCS12"}, {"type": "jks"}, {"type": ""}, {"type": None}])
def test_a_pkcs12_store(samples, kind):
    given = {f"ssl.truststore.{name}": value for name, value in kind.items()}
    settings = tls(**given, **{"ssl.truststore.location": samples("store.p12"), "ssl.truststore.password": PASSWORD})
    assert changed(settings) == {
        "ssl_truststore_location": samples("store.p12"),
        "ssl_truststore_type": "PKCS12",
        "ssl_truststore_password": PASSWORD,
    }
    assert changed(tls(ssl_truststore_location=samples("store.p12")))["ssl_truststore_type"] == "PKCS12"
    given = {f"ssl.keystore.{name}": value for name, value in kind.items()}
    for password in ("ssl.keystore.password", "ssl.key.password"):
        settings = tls(**given, **{"ssl.keystore.location": samples("store.p12"), password: PASSWORD})
        assert changed(settings) == {
            "ssl_keystore_location": samples("store.p12"),
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_password": PASSWORD,
        }


def test_passwords_of_a_keystore(samples):
    location = {"ssl_keystore_location": samples("store.p12")}
    assert "needs ssl_keystore_password, the password of the file" in tls_refused(**location)
    assert tls(**location, ssl_keystore_password="").secrets() == {"ssl_keystore_password": ""}
    same = tls(**location, ssl_keystore_password=PASSWORD, ssl_password=PASSWORD)
    assert same.secrets() == {"ssl_keystore_password": PASSWORD}
    message = tls_refused(**location, ssl_keystore_password=PASSWORD, ssl_password="other")
    assert "ssl_password differs from ssl_keystore_password: a PKCS#12 file has one password" in message
    for store in ("keystore", "truststore"):
        message = tls_refused(**{f"ssl.{store}.password": PASSWORD})
        assert f"ssl.{store}.password needs ssl_{store}_location" in message


@pytest.mark.parametrize("kind", [{}, {"type": "PEM"}, {"type": "pem"}])
def test_a_store_of_the_type_pem(samples, kind):
    given = {f"ssl.truststore.{name}": value for name, value in kind.items()}
    settings = tls(**given, **{"ssl.truststore.location": samples("ca.pem")})
    assert changed(settings) == {"ssl_cafile": samples("ca.pem")}
    given = {f"ssl.keystore.{name}": value for name, value in kind.items()}
    settings = tls(**given, **{"ssl.keystore.location": samples("both.pem")})
    assert changed(settings) == {"ssl_certfile": samples("both.pem")}
    for store in ("keystore", "truststore"):
        names = {f"ssl.{store}.location": samples("both.pem"), f"ssl.{store}.password": PASSWORD}
        message = tls_refused(**names)
        assert f"ssl.{store}.password contradicts ssl.{store}.location: a file in PEM has no password" in message


def test_texts_of_kafkas_stores(samples):
    given = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": in_one_line(samples.certificate),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": in_one_line(samples.certificate),
        "ssl.keystore.key": in_one_line(samples.encrypted_key),
        "ssl.key.password": PASSWORD,
    }
    assert changed(tls(**given)) == {
        "ssl_cadata": samples.certificate,
        "ssl_certdata": samples.certificate,
        "ssl_keydata": samples.encrypted_key,
        "ssl_password": PASSWORD,
    }
    message = tls_refused(**{**given, "ssl.truststore.type": "PKCS12"})
    assert "ssl.truststore.certificates contradicts ssl.truststore.type='PKCS12': a text can be only PEM" in message


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_a_type_that_the_file_does_not_have(samples, store):
    """Without the type, each of the files is taken for what it is."""
    location, type_of = f"ssl_{store}_location", f"ssl_{store}_type"
    for file, kind, found in (
        ("store.p12", "PEM", "PKCS12"),
        ("both.pem", "PKCS12", "PEM"),
        ("both.pem", "JKS", "PEM"),
    ):
        password = {f"ssl_{store}_password": PASSWORD} if file == "store.p12" else {}
        message = tls_refused(**{location: samples(file), type_of: kind, **password})
        assert f"the file is {found}, which contradicts {type_of}={kind!r}; leave the type out" in message
        assert changed(tls(**{location: samples(file), **password}))
    assert "expected None, 'PKCS12', 'PEM'" in tls_refused(**{type_of: "BKS"})


def test_types_of_stores_that_are_not_given():
    assert changed(tls(ssl_truststore_type="PKCS12", ssl_keystore_type="JKS")) == {}


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("ssl_check_hostname", True, True),
        ("ssl_check_hostname", False, False),
        ("ssl.check.hostname", "false", False),
        ("ssl.endpoint.identification.algorithm", "https", True),
        ("ssl.endpoint.identification.algorithm", "HTTPS", True),
        ("ssl.endpoint.identification.algorithm", "", False),
        ("ssl.endpoint.identification.algorithm", " ", False),
        ("ssl.endpoint.identification.algorithm", "none", False),
        ("ssl_endpoint_identification_algorithm", "", False),
        ("ssl_endpoint_identification_algorithm", None, True),
    ],
)
def test_the_check_of_the_host_name(name, value, checked):
    assert tls(**{name: value}).ssl_check_hostname is checked


def test_the_check_of_the_host_name_is_no_other_text():
    for name, value in (("ssl.endpoint.identification.algorithm", "ldaps"), ("ssl_check_hostname", "false")):
        assert "expected True (Kafka's https), or False" in tls_refused(**{name: value})


@pytest.mark.parametrize(
    ("value", "versions"),
    [
        ("TLSv1.2,TLSv1.3", ("TLSv1.2", "TLSv1.3")),
        ("tlsv1.3, TLSv1.2", ("TLSv1.2", "TLSv1.3")),
        (["TLSv1.3"], ("TLSv1.3",)),
        (("TLSv1.2", "TLSv1.2"), ("TLSv1.2",)),
        ("", ("TLSv1.2", "TLSv1.3")),
    ],
)
def test_versions(value, versions):
    assert tls(ssl_enabled_protocols=value).ssl_enabled_protocols == versions
    assert tls(**{"ssl.enabled.protocols": value}).sender_settings()["ssl_enabled_protocols"] == list(versions)


def test_versions_that_are_refused():
    for value in ("TLSv1.2,TLSv1.1", "SSLv3", "TLSv1"):
        assert "versions before TLS 1.2 are not secure" in tls_refused(ssl_enabled_protocols=value)
    for value in ("TLSv1.4", 5, [5], {"TLSv1.2": 1}):
        assert "expected TLSv1.2, TLSv1.3, or both" in tls_refused(ssl_enabled_protocols=value)


def test_kafkas_newest_version():
    for value in ("TLSv1.3", "TLS", "tlsv1.3"):
        assert changed(tls(**{"ssl.protocol": value})) == {}
    assert changed(tls(**{"ssl.protocol": "TLSv1.2"})) == {"ssl_enabled_protocols": ["TLSv1.2"]}
    assert tls(ssl_protocol="TLSv1.2", ssl_enabled_protocols="TLSv1.2").ssl_enabled_protocols == ("TLSv1.2",)
    message = tls_refused(**{"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"})
    assert "ssl.protocol='TLSv1.2' contradicts ssl.enabled.protocols='TLSv1.3'" in message
    assert "are not secure" in tls_refused(**{"ssl.protocol": "SSL"})
    assert "expected TLSv1.3 or TLSv1.2" in tls_refused(ssl_protocol=1.2)


AES = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


def test_ciphers_of_openssl_say_nothing_of_tls13():
    assert changed(tls(ssl_ciphers="ECDHE+AESGCM:!aNULL")) == {"ssl_ciphers": "ECDHE+AESGCM:!aNULL"}
    assert changed(tls(**{"ssl.cipher.suites": ""})) == {}


def test_ciphers_of_kafka_limit_the_versions(caplog):
    only = tls(**{"ssl.cipher.suites": AES})
    assert changed(only) == {"ssl_ciphers": "ECDHE-RSA-AES256-GCM-SHA384", "ssl_enabled_protocols": ["TLSv1.2"]}
    assert only == tls(ssl_cipher_suites=[AES])
    assert not caplog.records
    both = tls(**{"ssl.cipher.suites": f"{AES},TLS_AES_128_GCM_SHA256"})
    assert changed(both) == {"ssl_ciphers": "ECDHE-RSA-AES256-GCM-SHA384"}
    assert "ssl.cipher.suites cannot choose among the suites of TLS 1.3" in caplog.text
    newest = tls(**{"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"})
    assert changed(newest) == {"ssl_enabled_protocols": ["TLSv1.3"]}
    message = tls_refused(**{"ssl.cipher.suites": AES, "ssl.enabled.protocols": "TLSv1.3"})
    assert "ssl.cipher.suites has no suite for ssl.enabled.protocols='TLSv1.3'" in message


@pytest.mark.parametrize("value", ["NO-SUCH", f"{AES},TLS_RSA_WITH_NO_SUCH", 5, "a\0b", [5], "ä"])
def test_unknown_ciphers(value):
    assert "expected None, or names of cipher suites" in tls_refused(ssl_ciphers=value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("aNULL", "does not verify the broker's certificate"),
        ("aNULL:@SECLEVEL=0", "does not verify the broker's certificate"),
        ("AES256-SHA:ADH", "does not verify the broker's certificate"),
        ("AES256-SHA ADH-AES256-SHA", "ADH-AES256-SHA does not verify the broker's certificate"),
        ("ECDHE-RSA-AES256-SHA,AECDH-AES256-SHA", "AECDH-AES256-SHA does not verify the broker's certificate"),
        ("TLS_DH_anon_WITH_AES_128_CBC_SHA", "DH-ANON-AES128-SHA does not verify the broker's"),
        (
            f"{AES},TLS_ECDH_anon_WITH_AES_128_CBC_SHA",
            "ECDH-ANON-AES128-SHA does not verify the broker's",
        ),
        ([AES, "AECDH-AES128-SHA"], "AECDH-AES128-SHA does not verify the broker's certificate"),
        ("eNULL:!aNULL:@SECLEVEL=0", "does not encrypt"),
        ("NULL-SHA256", "NULL-SHA256 does not encrypt"),
        (f"{AES},TLS_RSA_WITH_NULL_SHA256", "NULL-SHA256 does not encrypt"),
        ("COMPLEMENTOFALL:!aNULL", "does not encrypt"),
    ],
)
def test_ciphers_without_a_certificate_or_without_encryption_are_refused(value, reason):
    """Whatever OpenSSL's security level is: with level 0 they would be used."""
    message = tls_refused(ssl_ciphers=value)
    assert reason in message and "; remove " in message


@pytest.mark.parametrize("value", ["HIGH", "ALL:@SECLEVEL=0", "kRSA", "DEFAULT"])
def test_groups_with_ciphers_that_the_sender_excludes(value):
    assert changed(tls(ssl_ciphers=value)) == {"ssl_ciphers": value}


# ---------------------------------------------------------------- without TLS, copies, the sender


def test_without_tls_the_settings_have_no_effect(samples, caplog):
    for protocol in ({}, {"security_protocol": "PLAINTEXT"}):
        caplog.clear()
        settings = parse(**protocol, ssl_cafile="/no/such/file", ssl_password="Zq7", ssl_check_hostname=True)
        assert settings.sender_settings() == parse().sender_settings() and settings.secrets() == {}
        assert [record.getMessage() for record in caplog.records] == [
            "ssl_cafile and ssl_password have no effect with security_protocol='PLAINTEXT', which does not use TLS"
        ]


def all_kinds(samples):
    yield {"ssl_cafile": samples("ca.pem"), "ssl_crlfile": samples("crl.pem"), "ssl_ciphers": "HIGH"}
    yield {"ssl_cadata": samples.certificate, "ssl_certdata": samples.certificate, "ssl_keydata": samples.key}
    yield {"ssl_truststore_location": samples("store.p12"), "ssl_truststore_password": PASSWORD}
    yield {"ssl.keystore.location": samples("store.p12"), "ssl.key.password": PASSWORD}
    yield {"ssl.truststore.location": samples("both.pem"), "ssl.keystore.location": samples("both.pem")}
    yield {"ssl.cipher.suites": AES, "ssl.protocol": "TLSv1.2", "ssl.endpoint.identification.algorithm": ""}


def test_copies_and_the_sender_have_the_same_settings(samples, caplog):
    for given in all_kinds(samples):
        settings = tls(**given)
        assert json.loads(json.dumps(settings.sender_settings())) == settings.sender_settings()
        for other in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
            assert other == settings
        sender = round_trip(settings)
        assert (sender.sender_settings(), sender.secrets()) == (settings.sender_settings(), settings.secrets())
    assert not caplog.records


def test_a_copy_does_not_read_the_files(samples):
    settings = [tls(**given) for given in all_kinds(samples)]
    pickled = pickle.dumps(settings)
    for name in os.listdir(samples.directory):
        os.unlink(samples(name))
    assert pickle.loads(pickled) == settings


def test_files_of_another_host_are_not_read(samples, caplog):
    there = Settings.parse_for_other_host(bootstrap_servers="b", security_protocol="SSL", ssl_cafile="/no/such/file")
    assert there.ssl_cafile == "/no/such/file"
    for kind in ("PEM", "PKCS12", "JKS", None):
        given = {"ssl.truststore.location": "/no/such/file", "ssl.truststore.type": kind, "acks": 1}
        there = Settings.parse_for_other_host(bootstrap_servers="b", security_protocol="SSL", **given)
        assert (there.ssl_cafile or there.ssl_truststore_location) == "/no/such/file"
    assert not caplog.records
    for given in ({"ssl_keyfile": "/no/such"}, {"ssl.truststore.location": samples("store.jks")}, {"acks": 7}):
        with pytest.raises(KafkaConfigurationError):
            Settings.parse_for_other_host(bootstrap_servers="b", security_protocol="SSL", **given)


def test_a_sender_that_is_named_has_its_own_files(samples, caplog):
    settings = Settings.parse(sender="/s", ssl_cafile="/no/such/file", ssl_certfile="/no/such", ssl_password="Zq7")
    assert settings.explicit_sender_settings() == {"ssl_cafile": "/no/such/file", "ssl_certfile": "/no/such"}
    assert settings.secrets() == {"ssl_password": "Zq7"}
    pem = Settings.parse(sender="/s", **{"ssl.truststore.location": samples("ca.pem")})
    assert pem.explicit_sender_settings() == {"ssl_cafile": samples("ca.pem")}
    assert Settings.parse(sender="/s", security_protocol="SSL").explicit_sender_settings() == {
        "security_protocol": "SSL"
    }
    assert not caplog.records
    plain = Settings.parse(sender="/s", security_protocol="PLAINTEXT", ssl_cafile="/no/such/file")
    assert plain.explicit_sender_settings() == {"security_protocol": "PLAINTEXT"}
    assert "ssl_cafile has no effect" in caplog.text


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT", "PLAINTEXT"])
def test_listeners_agree_with_the_protocol(protocol):
    given = {"sasl_mechanism": "GSSAPI"} if protocol.startswith("SASL") else {}
    entries = [f"{protocol}://a:1", f"{protocol.lower()}://[::1]:2", "a:1", "c"]
    settings = parse(bootstrap_servers=entries, security_protocol=protocol, **given)
    assert settings.bootstrap_servers == ("a:1", "[::1]:2", "c:9092")
    other = "PLAINTEXT" if protocol == "SSL" else "SSL"
    message = refused(bootstrap_servers=f"a:1,{other}://b:1", security_protocol=protocol, **given)
    assert f"bootstrap_servers: the entry '{other}://b:1' contradicts security_protocol={protocol!r}; set" in message


def test_unknown_listeners():
    assert "none of the protocols PLAINTEXT, SSL" in refused(bootstrap_servers="EXTERNAL://b:1")
