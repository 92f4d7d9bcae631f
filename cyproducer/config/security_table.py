"""Defines the part of the table of settings that concerns TLS and SASL, and the other spellings of these settings.

The names are those of kafka-python or of Kafka. Where both have one, kafka-python's is the setting's name here, and
Kafka's its dotted name.
"""

from cyproducer.config import kinds
from cyproducer.config import security_kinds as security
from cyproducer.config.pem import CERTIFICATE, PRIVATE_KEY
from cyproducer.config.setting import FRONT_END, SENDER, Setting, row

__all__ = ["OTHER_SPELLINGS", "SECURITY_BY_NAME", "SECURITY_SETTINGS"]

_PASSWORD = "a str without NUL"
_CLIENT = "sasl_oauthbearer_client_credentials_client"
_REFRESH = "sasl_login_refresh"

# fmt: off
SECURITY_SETTINGS: tuple[Setting, ...] = (
    row("security_protocol", "PLAINTEXT", kinds.choice(*kinds.PROTOCOLS, upper=True), SENDER,
        "whether connections use TLS (SSL), and whether they authenticate with SASL"),
    # TLS: whom to trust
    row("ssl_cafile", None, security.path("ssl_cadata"), SENDER,
        "a file in PEM with the certificates of the authorities that sign the brokers' certificates; None, also for "
        "`ssl_cadata` and `ssl_truststore_location`: the system's authorities",
        kafka_name="ssl.ca.location"),
    row("ssl_cadata", None, security.pem_text("certificate", CERTIFICATE, "ssl_cafile"), SENDER,
        "the certificates of `ssl_cafile` as a text", kafka_name="ssl.truststore.certificates", shown=False),
    row("ssl_truststore_location", None, security.path("ssl_cadata"), SENDER,
        "a PKCS#12 file with the certificates of the authorities; a file in PEM counts as `ssl_cafile`"),
    row("ssl_truststore_password", None, security.text(_PASSWORD, empty=True), SENDER,
        "the password of `ssl_truststore_location`", secret=True),
    row("ssl_truststore_type", None, security.store_type(), SENDER,
        "the type of `ssl_truststore_location`; None: the file decides; a file of the type JKS must be converted"),
    # TLS: the certificate of this client
    row("ssl_certfile", None, security.path("ssl_certdata"), SENDER,
        "a file in PEM with the certificate chain of this client, and with its private key if there is no "
        "`ssl_keyfile`", kafka_name="ssl.certificate.location"),
    row("ssl_keyfile", None, security.path("ssl_keydata"), SENDER,
        "a file in PEM with the private key of `ssl_certfile`", kafka_name="ssl.key.location", shown=False),
    row("ssl_certdata", None, security.pem_text("certificate", CERTIFICATE, "ssl_certfile"), SENDER,
        "the certificate chain as a text", kafka_name="ssl.keystore.certificate.chain", shown=False),
    row("ssl_keydata", None, security.pem_text("private key", PRIVATE_KEY, "ssl_keyfile"), SENDER,
        "the private key of `ssl_certdata` as a text", kafka_name="ssl.keystore.key", secret=True),
    row("ssl_password", None, security.text(_PASSWORD), SENDER, "the password of the private key",
        kafka_name="ssl.key.password", secret=True),
    row("ssl_keystore_location", None, security.path("ssl_certdata"), SENDER,
        "a PKCS#12 file with the private key and the certificate chain; a file in PEM counts as `ssl_certfile`"),
    row("ssl_keystore_password", None, security.text(_PASSWORD, empty=True), SENDER,
        "the password of `ssl_keystore_location`", secret=True),
    row("ssl_keystore_type", None, security.store_type(), SENDER,
        "the type of `ssl_keystore_location`; None: the file decides; a file of the type JKS must be converted"),
    # TLS: rules
    row("ssl_check_hostname", True, security.hostname_check(), SENDER,
        "whether the broker's certificate must have the name that is connected to",
        kafka_name="ssl.endpoint.identification.algorithm"),
    row("ssl_crlfile", None, security.path(), SENDER,
        "a file in PEM with lists of revoked certificates, one of each authority", kafka_name="ssl.crl.location"),
    row("ssl_ciphers", None, security.ciphers(), SENDER,
        "the cipher suites that can be used; None: those of Python's ssl module; those of TLS 1.3 cannot be chosen one "
        "by one",
        kafka_name="ssl.cipher.suites"),
    row("ssl_enabled_protocols", security.TLS_VERSIONS, security.tls_versions(), SENDER,
        "the versions of TLS that can be used"),
    row("ssl_protocol", "TLSv1.3", security.tls_protocol(), SENDER,
        "Kafka's other name for the newest version of TLS: TLSv1.2 removes TLSv1.3 from `ssl_enabled_protocols`",
        attribute=False),
    # SASL
    row("sasl_mechanism", "GSSAPI", security.mechanism(), SENDER, "how to authenticate"),
    row("sasl_plain_username", None, security.user(), SENDER, "the user of PLAIN and SCRAM",
        kafka_name="sasl.username"),
    row("sasl_plain_password", None, security.text(_PASSWORD), SENDER, "the password of PLAIN and SCRAM",
        kafka_name="sasl.password", secret=True),
    row("sasl_jaas_config", None, security.text("a str: MODULE required NAME=\"VALUE\" ...;"), SENDER,
        "Kafka's JAAS configuration; its options become the settings of the mechanism", secret=True,
        attribute=False),
    row("sasl_kerberos_service_name", "kafka", security.user(), SENDER,
        "the first part of the brokers' Kerberos principals"),
    row("sasl_kerberos_domain_name", None, security.user(), SENDER,
        "the second part of the brokers' principals; None: the name that is connected to"),
    row("sasl_kerberos_name", None, security.service_of_broker(), SENDER,
        "kafka-python's name for both parts of the brokers' principals", attribute=False),
    row("sasl_kerberos_principal", None, security.user(), SENDER, "the principal of this client"),
    row("sasl_kerberos_keytab", None, security.path(), SENDER,
        "the file with the keys of the principal; None: a ticket that kinit got is used", shown=False),
    row("sasl_kerberos_ticket_cache", None, security.user(), SENDER,
        "the cache with that ticket; None: the environment variable KRB5CCNAME, else Kerberos' own default"),
    row("sasl_kerberos_config", None, security.user(), SENDER,
        "the configuration of Kerberos, one or more files separated by colons; None: the environment variable "
        "KRB5_CONFIG, else Kerberos' own default (/etc/krb5.conf)"),
    # OAUTHBEARER
    row("sasl_oauth_token_provider", None, security.provider(), FRONT_END,
        "an object with the method token(), as in kafka-python and aiokafka, or a function, as confluent-kafka's "
        "`oauth_cb`", shown=False),
    row("sasl_oauth_principal", None, security.user(), SENDER,
        "whose tokens `sasl_oauth_token_provider` returns: processes share a sender only with the same value; None: "
        "what the token or the provider says"),
    row("sasl_oauthbearer_token_endpoint_url", None, security.endpoint(), SENDER,
        "where tokens are requested: the URL of the identity provider's token endpoint, or of a file with a token",
        shown=False),
    row(_CLIENT + "_id", None, security.user(), SENDER, "the name of this client at the token endpoint"),
    row(_CLIENT + "_secret", None, security.text(_PASSWORD), SENDER,
        "the password of this client at the token endpoint", secret=True),
    row("sasl_oauthbearer_scope", None, security.user(), SENDER, "the scope that is requested with a token"),
    row("sasl_oauthbearer_extensions", (), security.extensions(), SENDER,
        "names and values that are sent to the broker with each token (KIP-342)", shown=False),
    row("sasl_oauthbearer_header_urlencode", False, kinds.boolean(), SENDER,
        "whether client id and secret are URL-encoded in the request for a token (RFC 6749)"),
    row("https_ca_location", None, security.path(), SENDER,
        "a file in PEM with the certificates of the authorities that sign the token endpoint's certificate; None: the "
        "system's authorities"),
    row(_REFRESH + "_window_factor", 0.8, security.fraction(0.5, 1.0), SENDER,
        "the part of a token's lifetime after which another one is requested"),
    row(_REFRESH + "_window_jitter", 0.05, security.fraction(0.0, 0.25), SENDER,
        "the largest part of the lifetime by which this time is varied"),
    row(_REFRESH + "_min_period_seconds", 60, kinds.number(0, 900), SENDER,
        "the shortest time between two requests for a token"),
    row(_REFRESH + "_buffer_seconds", 300, kinds.number(0, 3600), SENDER,
        "how long before its end a token is replaced at the latest"),
    row("sasl_login_retry_backoff_ms", 100, kinds.long(0), SENDER,
        "the pause before the first repetition of a request for a token; it doubles with each further one"),
    row("sasl_login_retry_backoff_max_ms", 10_000, kinds.long(0), SENDER, "the longest pause before a repetition"),
    row("sasl_login_connect_timeout_ms", None, kinds.optional(kinds.number(0)), SENDER,
        "how long connecting to the token endpoint may take; None or 0: no limit of its own"),
    row("sasl_login_read_timeout_ms", None, kinds.optional(kinds.number(0)), SENDER,
        "how long the token endpoint's answer may take; None or 0: no limit of its own"),
)

#: Names of other clients, and older ones, with underscores -> the setting that they mean.
OTHER_SPELLINGS = {
    # librdkafka, and so confluent-kafka
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_oauthbearer_client_id": _CLIENT + "_id",
    "sasl_oauthbearer_client_secret": _CLIENT + "_secret",
    "ssl_ca_pem": "ssl_cadata",
    "ssl_certificate_pem": "ssl_certdata",
    "ssl_key_pem": "ssl_keydata",
    "oauth_cb": "sasl_oauth_token_provider",
    "oauthbearer_token_refresh_cb": "sasl_oauth_token_provider",
}
# fmt: on

SECURITY_BY_NAME = {setting.name: setting for setting in SECURITY_SETTINGS}
OTHER_SPELLINGS |= {
    dotted: setting.name
    for setting in SECURITY_SETTINGS
    if (dotted := setting.kafka_name.replace(".", "_")) != setting.name
}
