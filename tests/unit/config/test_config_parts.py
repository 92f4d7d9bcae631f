"""Tests the parts that the settings of TLS and SASL are made of: PEM texts, cipher suites, providers of tokens."""

import functools
import pickle
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_samples import in_one_line

from cyproducer.config import pem
from cyproducer.config.ciphers import TLS13_SUITES, openssl_ciphers, why_refused
from cyproducer.config.kinds import CalledTokenProvider, token_provider

# ---------------------------------------------------------------- PEM


def test_pem_in_one_form(samples):
    for text in (samples.certificate, samples.key, samples.encrypted_key):
        assert pem.normalised(text) == pem.normalised(in_one_line(text)) == text
        assert pem.normalised(text.replace("\n", "\r\n")) == text
        assert pem.normalised(text.replace("\n", "\\r\\n")) == text
        assert pem.normalised(f"subject: x\n{text}\n\n{text}") == text * 2
    ssl.PEM_cert_to_DER_cert(pem.normalised(in_one_line(samples.certificate)))


def test_an_old_encrypted_key_keeps_its_headers(samples):
    with open(samples("traditional.pem")) as file:
        text = file.read()
    assert "Proc-Type: 4,ENCRYPTED" in text
    assert pem.normalised(text) == text
    assert pem.is_encrypted(text.encode()) and pem.is_encrypted(samples.encrypted_key.encode())
    assert not pem.is_encrypted((samples.key + samples.certificate).encode())


@given(st.text())
def test_damaged_pem_is_refused_without_a_part_of_it(text):
    secret = "Zq7Zq7"
    for damaged in (text, f"-----BEGIN PRIVATE KEY-----{text}{secret}", f"-----BEGIN A----- {secret}! -----END A-----"):
        with pytest.raises(ValueError, match="it is not PEM") as caught:
            pem.normalised(damaged)
        assert secret not in str(caught.value)


# ---------------------------------------------------------------- ciphers


def test_names_of_ciphers_are_those_of_openssl():
    """OpenSSL prints both names of each suite of TLS 1.2."""
    try:
        command = ["openssl", "ciphers", "-stdname", "-s", "-tls1_2", "ALL"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.fail("the command openssl is missing: install OpenSSL", pytrace=False)
    rows = [line.split() for line in printed.splitlines()]
    names = {row[0]: row[2] for row in rows if not any(kind in row[0] for kind in ("PSK", "SRP", "anon", "DSS"))}
    assert len(names) > 30
    for iana, own in names.items():
        assert openssl_ciphers(iana) == (own, (), True)


def test_lists_of_ciphers():
    for separator in (",", ":", ", "):
        found = openssl_ciphers(separator.join(["TLS_AES_128_GCM_SHA256", "tls_rsa_with_aes_128_cbc_sha"]))
        assert found == ("AES128-SHA", ("TLS_AES_128_GCM_SHA256",), True)
    assert openssl_ciphers(" HIGH:!aNULL ") == ("HIGH:!aNULL", (), False)
    assert why_refused(openssl_ciphers("HIGH:!aNULL")) == ""
    assert "has no cipher that this text selects" in why_refused(openssl_ciphers("NO-SUCH"))
    assert "has no cipher NULL-X" in why_refused(openssl_ciphers("TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_NULL_X"))


def test_the_suites_of_tls13_are_those_of_openssl():
    names = {cipher["name"] for cipher in ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).get_ciphers()}
    assert {name for name in names if name.startswith("TLS_")} == set(TLS13_SUITES)


# ---------------------------------------------------------------- providers of tokens


class Provider:
    def token(self):
        return "a"


class Asynchronous:
    async def token(self):
        return "a"


def plain():
    return "a"


def with_configuration(config):
    return f"a{config}", 5.0


def with_default(config="x"):
    return config


class Callable:
    def __call__(self, config):
        return "a", 5.0


def test_an_object_with_token_is_itself():
    for provider in (Provider(), Asynchronous()):
        assert token_provider(provider) is provider


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (plain, "a"), (with_configuration, ("a", 5.0)), (with_default, "x"),
        (functools.partial(with_configuration, "b"), ("ab", 5.0)), (Callable(), ("a", 5.0)), (Provider().token, "a"),
        ({"a": "b"}.copy, {"a": "b"}),
    ],
)  # fmt: skip
def test_a_function_becomes_an_object_with_token(function, result):
    provider = token_provider(function)
    assert provider.token() == result
    assert token_provider(provider) is provider


def test_a_function_is_not_shown_and_can_be_pickled():
    provider = token_provider(functools.partial(with_configuration, "Zq7"))
    assert "Zq7" not in repr(provider) + str(provider)
    copy = pickle.loads(pickle.dumps(provider))
    assert isinstance(copy, CalledTokenProvider) and copy.token() == provider.token()


@pytest.mark.parametrize("value", [Provider, str, "token", 5, b"x", ["x"]])
def test_what_is_no_provider(value):
    with pytest.raises(TypeError):
        token_provider(value)
