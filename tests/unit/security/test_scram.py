"""Tests SCRAM: the vector of RFC 7677, an independent server, and every way in which a server can be wrong."""

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer.security.mechanism import MESSAGE_BYTES_MAX
from cyproducer.security.sasl import Credentials, SaslError, new_client
from cyproducer.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramClient

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = b"W22ZaJ0SNY7soEsUEjb6gQ=="
SERVER_FIRST = b"r=" + SERVER_NONCE + b",s=" + SALT + b",i=4096"
FINAL = b"c=biws,r=" + SERVER_NONCE + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def vector_client() -> ScramClient:
    """Return the client of the vector; it has sent its first message."""
    client = ScramClient("SCRAM-SHA-256", Credentials("user", "pencil"), NONCE)
    assert client.respond(None) == FIRST
    return client


def test_the_vector_of_the_rfc():
    client = vector_client()
    assert client.respond(SERVER_FIRST) == FINAL
    assert not client.complete
    assert client.respond(SERVER_FINAL) is None
    assert client.complete
    with pytest.raises(SaslError, match="out of order"):
        client.respond(SERVER_FINAL)


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["alice", "a=b,c=,2C", "=2C=3D"])
def test_an_independent_server_accepts_the_client(mechanism, user):
    password = "pass=word, with 'quotes' and ü"
    stored = scramp.ScramMechanism(mechanism)
    info = stored.make_auth_info(password, iteration_count=5000)
    asked = []

    def find(name: str) -> tuple[bytes, bytes, bytes, int]:
        asked.append(name)
        return info

    server = stored.make_server(find)
    client = new_client(mechanism, Credentials(user, password), "broker")
    server.set_client_first((client.respond(None) or b"").decode())
    server.set_client_final((client.respond(server.get_server_first().encode()) or b"").decode())
    assert client.respond(server.get_server_final().encode()) is None
    assert client.complete
    assert asked == [user]


def test_an_independent_server_refuses_a_wrong_password():
    stored = scramp.ScramMechanism("SCRAM-SHA-256")
    info = stored.make_auth_info("right")
    server = stored.make_server(lambda _: info)
    client = new_client("SCRAM-SHA-256", Credentials("alice", "wrong"), "broker")
    server.set_client_first((client.respond(None) or b"").decode())
    final = (client.respond(server.get_server_first().encode()) or b"").decode()
    with pytest.raises(scramp.ScramException):
        server.set_client_final(final)
    with pytest.raises(
        SaslError, match="refused SCRAM-SHA-256 with the error 'invalid-proof'; check sasl_plain_username"
    ):
        client.respond(server.get_server_final().encode())
    assert client.server_error == "invalid-proof"
    assert not client.complete


@pytest.mark.parametrize("password", ["\u2168 nine", "soft\u00adhyphen", "key \U0001f511", "e\u0301"])
def test_a_password_is_used_as_it_is_stored_by_kafka(password):
    """SASLprep would change or refuse each of these, but kafka-configs stores the hash of the bytes in UTF-8."""
    client = ScramClient("SCRAM-SHA-256", Credentials("user", password), NONCE)
    client.respond(None)
    final = client.respond(SERVER_FIRST) or b""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(SALT), 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    message = b",".join([FIRST.removeprefix(b"n,,"), SERVER_FIRST, final.partition(b",p=")[0]])
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    assert base64.b64decode(final.partition(b",p=")[2]) == proof


def test_nonces_are_random_and_printable():
    first, second = (ScramClient("SCRAM-SHA-256", Credentials("user", "pencil")).respond(None) or b"" for _ in range(2))
    assert first != second
    nonce = first.partition(b",r=")[2]
    assert len(nonce) >= 24 and all(0x21 <= each <= 0x7E and each != ord(",") for each in nonce)


@pytest.mark.parametrize("nonce", [NONCE.encode(), NONCE[:-1].encode() + b"xyz", b"other", b"x" + SERVER_NONCE])
def test_a_nonce_that_does_not_extend_ours_is_refused(nonce):
    with pytest.raises(SaslError, match="does not extend the client's nonce"):
        vector_client().respond(b"r=" + nonce + b",s=" + SALT + b",i=4096")


@pytest.mark.parametrize(
    ("iterations", "text"),
    [
        (MIN_ITERATIONS - 1, "fewer than 4096 do not protect the password"),
        (1, "fewer than 4096"),
        (MAX_ITERATIONS + 1, f"more than {MAX_ITERATIONS} stop the sender for too long"),
        (2**31 - 1, f"more than {MAX_ITERATIONS}"),
    ],
)
def test_too_few_and_too_many_iterations_are_refused_before_they_are_computed(iterations, text, monkeypatch):
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", None)
    with pytest.raises(SaslError, match=text):
        vector_client().respond(b"r=" + SERVER_NONCE + b",s=" + SALT + f",i={iterations}".encode())


@pytest.mark.parametrize("iterations", [MIN_ITERATIONS, MAX_ITERATIONS])
def test_the_limits_themselves_are_accepted(iterations):
    client = vector_client()
    assert client.respond(b"r=" + SERVER_NONCE + b",s=" + SALT + f",i={iterations}".encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"r=" + SERVER_NONCE,
        b"r=" + SERVER_NONCE + b",s=,i=4096",
        b"r=" + SERVER_NONCE + b",s=W22Z,i=04096",
        b"r=" + SERVER_NONCE + b",s=W22Z,i=-4096",
        b"r=" + SERVER_NONCE + b",s=W22Z,i=4096x",
        b"r=" + SERVER_NONCE + b",s=W22Z,i=" + b"9" * 5000,
        b"r=" + SERVER_NONCE + b",s=W2Z,i=4096",
        b"r=" + SERVER_NONCE + b",s=W2$Z,i=4096",
        b"r=" + SERVER_NONCE + b" ,s=W22Z,i=4096",
        b"s=W22Z,r=" + SERVER_NONCE + b",i=4096",
        b"m=ext,r=" + SERVER_NONCE + b",s=W22Z,i=4096",
        b"r=" + SERVER_NONCE + b",s=W22Z,i=4096\n",
        b"\xff" + SERVER_FIRST,
        SERVER_FIRST + b",x=" + b"a" * MESSAGE_BYTES_MAX,
    ],
)
def test_a_malformed_first_message_is_refused(message):
    with pytest.raises(SaslError, match="cannot be understood"):
        vector_client().respond(message)


WRONG = "signature in SCRAM-SHA-256 is wrong, so the broker does not have the password"
SIGNATURE = base64.b64decode(SERVER_FINAL[2:])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        *((b"v=" + base64.b64encode(each), WRONG) for each in (bytes(32), SIGNATURE[:-1], SIGNATURE + b"\0")),
        *((each, "cannot be understood") for each in (b"", b"v=", b"v=6rr", b"x=1", SERVER_FINAL[:-1], SERVER_FIRST)),
        (b"e=", "cannot be understood"),
    ],
)
def test_a_wrong_or_malformed_final_message_is_refused(message, text):
    client = vector_client()
    client.respond(SERVER_FIRST)
    with pytest.raises(SaslError, match=text):
        client.respond(message)
    assert not client.complete
    with pytest.raises(SaslError):
        client.respond(SERVER_FINAL)
    assert not client.complete


def signature_of(message: bytes) -> bytes:
    """Return the bytes of the signature: several texts of Base64 mean the same ones."""
    return base64.b64decode(message.removeprefix(b"v=").partition(b",")[0])


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_changed_message_completes_the_exchange(data):
    client = vector_client()
    try:
        for message in (SERVER_FIRST, SERVER_FINAL):
            start = data.draw(st.integers(0, len(message)))
            end = data.draw(st.integers(start, len(message)))
            changed = message[:start] + data.draw(st.binary(max_size=8)) + message[end:]
            # Half of the first messages are right, so that the final one is reached.
            right = message is SERVER_FIRST and data.draw(st.booleans())
            client.respond(message if right else changed)
            if not right:
                assert not client.complete or signature_of(changed) == signature_of(SERVER_FINAL)
    except SaslError:
        assert not client.complete


def test_an_error_instead_of_the_first_message_is_shown():
    client = vector_client()
    with pytest.raises(SaslError, match="with the error 'unknown-user'"):
        client.respond(b"e=unknown-user")
    assert client.server_error == "unknown-user"


def test_extensions_of_a_server_are_ignored_and_signed():
    """They are a part of what is signed (RFC 5802, section 3), so the proof is another one."""
    client = vector_client()
    final = client.respond(SERVER_FIRST + b",x=1")
    assert final is not None and final != FINAL and final.startswith(FINAL.partition(b",p=")[0])


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that gets the salt of each computation."""
    salts = []
    real: Callable[..., bytes] = hashlib.pbkdf2_hmac

    def pbkdf2_hmac(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        salts.append(salt)
        return real(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", pbkdf2_hmac)
    return salts


def test_a_salted_password_is_computed_once_for_all_brokers(computed):
    credentials = Credentials("user", "pencil")
    for _ in range(3):
        client = ScramClient("SCRAM-SHA-256", credentials, NONCE)
        client.respond(None)
        assert client.respond(SERVER_FIRST) == FINAL
    assert len(computed) == 1


def test_only_a_few_salted_passwords_are_kept(computed):
    credentials = Credentials("user", "pencil")
    for number in range(10):
        client = ScramClient("SCRAM-SHA-256", credentials, NONCE)
        client.respond(None)
        salt = base64.b64encode(b"salt %d" % number)
        client.respond(b"r=" + SERVER_NONCE + b",s=" + salt + b",i=4096")
        assert len(credentials.salted_passwords) <= 4
    assert len(computed) == 10
    assert "pencil" not in repr(credentials)


def test_a_refusal_of_openssl_is_explained(monkeypatch):
    def refuse(*_: object) -> bytes:
        raise ValueError("invalid salt length")

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", refuse)
    with pytest.raises(SaslError, match=r"OpenSSL refuses the salt .* invalid salt length; a system in FIPS mode"):
        vector_client().respond(SERVER_FIRST)
