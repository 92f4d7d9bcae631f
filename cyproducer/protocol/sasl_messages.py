"""Describes the messages with which a client authenticates itself by SASL (KIP-43, KIP-152, KIP-368)."""

from .tables import NEVER, Field, Message

SASL_HANDSHAKE_REQUEST = Message("SaslHandshakeRequest", 17, 0, 1, NEVER, (Field("mechanism", "string"),))

SASL_HANDSHAKE_RESPONSE = Message(
    "SaslHandshakeResponse",
    17,
    0,
    1,
    NEVER,
    (
        Field("error_code", "int16"),
        Field("mechanisms", "[]string"),
    ),
)

SASL_AUTHENTICATE_REQUEST = Message("SaslAuthenticateRequest", 36, 0, 2, 2, (Field("auth_bytes", "bytes"),))

SASL_AUTHENTICATE_RESPONSE = Message(
    "SaslAuthenticateResponse",
    36,
    0,
    2,
    2,
    (
        Field("error_code", "int16"),
        Field("error_message", "string", nullable=0),
        Field("auth_bytes", "bytes"),
        Field("session_lifetime_ms", "int64", 1, default=0, ignorable=True),
    ),
)
