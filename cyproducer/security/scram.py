"""Authenticates with SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677).

The library scramp is not used: it applies SASLprep to each password, which Kafka does not, so it refuses or changes
passwords that brokers have stored and Kafka's own clients send.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from cyproducer.security.mechanism import MESSAGE_BYTES_MAX, Credentials, SaslError
from cyproducer.security.plain import PASSWORD_ADVICE, user_and_password
from cyproducer.security.server_text import server_text

__all__ = ["MAX_ITERATIONS", "MIN_ITERATIONS", "SCRAM_HASHES", "ScramClient"]

#: Mechanism -> name of its hash.
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
#: The least number of iterations, as in Kafka's client (ScramMechanism.java).
MIN_ITERATIONS = 4096
#: The greatest one. Brokers store credentials with at most 16384 iterations since Kafka 2.7; before, the tool
#: kafka-configs had no limit. Kafka's client has none, so that a hostile server could keep it busy for minutes. This
#: number costs about 40 ms (SHA-256) or 70 ms (SHA-512) of processor time, and only once for each salt.
MAX_ITERATIONS = 65536

_GS2_HEADER = b"n,,"  # no channel binding, no other authorization id: all that Kafka's brokers accept
_CHANNEL = base64.b64encode(_GS2_HEADER)
_SALTED_PASSWORDS_KEPT = 4
_BASE64 = rb"[A-Za-z0-9/+]+={0,2}"
_EXTENSIONS = rb"(?:,[A-Za-z]+=[^,\0]+)*"
# "m=", a mandatory extension, matches neither of these: RFC 5802 wants the client to fail.
_SERVER_FIRST = re.compile(rb"r=([\x21-\x2b\x2d-\x7e]+),s=(" + _BASE64 + rb"),i=([1-9][0-9]{0,9})" + _EXTENSIONS)
_SERVER_FINAL = re.compile(rb"v=(" + _BASE64 + rb")" + _EXTENSIONS)
_SERVER_ERROR = re.compile(rb"e=([^,\0]+)" + _EXTENSIONS)

_START, _FIRST_SENT, _FINAL_SENT, _ENDED = range(4)


class ScramClient:
    """The client of both mechanisms. Raise SaslError if the credentials cannot be used.

    nonce   of the client, for tests; None makes a random one
    """

    may_block = False
    advice = PASSWORD_ADVICE

    def __init__(self, mechanism: str, credentials: Credentials, nonce: str | None = None) -> None:
        self.mechanism = mechanism
        self.complete = False
        self.server_error = ""
        self._hash = SCRAM_HASHES[mechanism]
        user, self._password = user_and_password(mechanism, credentials)
        self.secrets: tuple[str, ...] = (self._password.decode(),)
        self._kept = credentials.salted_passwords
        self._nonce = (nonce or secrets.token_urlsafe(24)).encode("ascii")
        self._first_bare = b"n=" + user.replace(b"=", b"=3D").replace(b",", b"=2C") + b",r=" + self._nonce
        self._signature = b""
        self._state = _START

    def __repr__(self) -> str:
        return f"ScramClient({self.mechanism!r})"

    def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the client's first or final message, or None when the server has proved that it has the password.

        The final message costs the computation of PBKDF2, see MAX_ITERATIONS.
        """
        state, self._state = self._state, _ENDED
        if state == _START and challenge is None:
            self._state = _FIRST_SENT
            return _GS2_HEADER + self._first_bare
        if challenge is None or state not in (_FIRST_SENT, _FINAL_SENT):
            raise SaslError(f"a message of {self.mechanism} arrived out of order; begin a new authentication")
        if len(challenge) > MESSAGE_BYTES_MAX:
            raise self._malformed("it is too long")
        self._raise_error_of(challenge)
        if state == _FIRST_SENT:
            final = self._final_message(challenge)
            self._state = _FINAL_SENT
            return final
        self._verify(challenge)
        self.complete = True
        return None

    def _raise_error_of(self, challenge: bytes) -> None:
        """Raise SaslError if the challenge is an error of the server."""
        found = _SERVER_ERROR.fullmatch(challenge)
        if found is not None:
            self.server_error = server_text(found[1].decode("utf-8", "replace"), self.secrets)
            raise SaslError(f"the broker refused {self.mechanism} with the error {self.server_error!r}; {self.advice}")

    def _final_message(self, server_first: bytes) -> bytes:
        """Return the message with the proof that this client has the password, and keep what the server must prove."""
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise self._malformed("the message with the salt has another form")
        nonce, salt, iterations = found[1], self._decode(found[2]), int(found[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslError(
                f"the nonce in the broker's answer to {self.mechanism} does not extend the client's nonce, so the "
                "answer belongs to another connection or is forged; use TLS (security_protocol SASL_SSL), and check "
                "what is between the client and the broker"
            )
        if iterations < MIN_ITERATIONS:
            raise SaslError(
                f"the broker wants {iterations} iterations for {self.mechanism}, and fewer than {MIN_ITERATIONS} do "
                "not protect the password; set the password again with more iterations (kafka-configs)"
            )
        if iterations > MAX_ITERATIONS:
            raise SaslError(
                f"the broker wants {iterations} iterations for {self.mechanism}, and more than {MAX_ITERATIONS} stop "
                "the sender for too long; set the password again with fewer iterations (kafka-configs)"
            )
        salted = self._salted_password(salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = b"c=" + _CHANNEL + b",r=" + nonce
        auth_message = self._first_bare + b"," + server_first + b"," + without_proof
        client_signature = self._hmac(stored_key, auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        encoded = base64.b64encode(proof)
        # With it and the exchange before it, passwords can be tried.
        self.secrets = (*self.secrets, encoded.decode())
        return without_proof + b",p=" + encoded

    def _verify(self, server_final: bytes) -> None:
        """Raise SaslError unless the server has the password too."""
        found = _SERVER_FINAL.fullmatch(server_final)
        if found is None:
            raise self._malformed("the message with the signature has another form")
        if not hmac.compare_digest(self._decode(found[1]), self._signature):
            raise SaslError(
                f"the broker's signature in {self.mechanism} is wrong, so the broker does not have the password and "
                "may be another server than intended; check bootstrap_servers, and what is between the client and the "
                "broker"
            )

    def _salted_password(self, salt: bytes, iterations: int) -> bytes:
        """Return the salted password. Brokers share the salt of a user, so mostly it has been computed already."""
        key = (self._hash, salt, iterations)
        found = self._kept.get(key)
        if found is None:
            try:
                found = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
            except ValueError as error:
                raise SaslError(
                    f"OpenSSL refuses the salt or the password of {self.mechanism}: {error}; "
                    "a system in FIPS mode needs a longer salt and a longer password"
                ) from None
            if len(self._kept) >= _SALTED_PASSWORDS_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)

    def _decode(self, text: bytes) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise self._malformed("a value is not in base64") from None

    def _malformed(self, why: str) -> SaslError:
        return SaslError(
            f"the broker's answer to {self.mechanism} cannot be understood: {why}; check that bootstrap_servers names "
            "listeners of Kafka that use this mechanism"
        )
