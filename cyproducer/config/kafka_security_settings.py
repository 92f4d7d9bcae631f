"""Lists the settings of TLS and SASL: those of Kafka's producer, and those of other clients that are refused."""

from cyproducer.config.kafka_setting import PARTLY, REFUSED, SUPPORTED, KafkaSetting

__all__ = ["KAFKA_SECURITY_SETTINGS", "OF_OTHER_CLIENTS"]

_STORE = "A file of the type PKCS12 or PEM. JKS must be converted with keytool."
_TYPE = "The default is None: the file decides. JKS must be converted with keytool."
_JAVA = "classes and providers of Java cannot be used; OpenSSL is used"
_HANDLER = "classes of Java cannot be used; give tokens with sasl_oauth_token_provider"
_TICKET = (
    "tickets are not renewed by a command; use sasl.kerberos.keytab, or renew them outside, for example with k5start"
)
_AT_LEAST_0 = "At least 0."
_OF_BROKERS = "a setting of brokers, which check tokens"
_CLAIMS = "the client does not look into the token"
_ASSERTION = "assertions (KIP-1139) are not supported; use client id and secret, or sasl_oauth_token_provider"
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_OPENSSL = "OpenSSL's own configuration decides (openssl.cnf)"
_REFUSED_CLAIMS = ("aud", "iss", "sub")

# fmt: off
KAFKA_SECURITY_SETTINGS = (
    KafkaSetting("security.protocol", SUPPORTED),
    KafkaSetting("ssl.truststore.location", PARTLY, _STORE),
    KafkaSetting("ssl.truststore.password", SUPPORTED),
    KafkaSetting("ssl.truststore.type", PARTLY, _TYPE),
    KafkaSetting("ssl.truststore.certificates", SUPPORTED),
    KafkaSetting("ssl.keystore.location", PARTLY, _STORE),
    KafkaSetting("ssl.keystore.password", SUPPORTED),
    KafkaSetting("ssl.keystore.type", PARTLY, _TYPE),
    KafkaSetting("ssl.keystore.certificate.chain", SUPPORTED),
    KafkaSetting("ssl.keystore.key", SUPPORTED),
    KafkaSetting("ssl.key.password", PARTLY, "That of a PKCS#12 file is the password of the file."),
    KafkaSetting("ssl.endpoint.identification.algorithm", PARTLY,
                 "`https`, or empty for no check. `none` (librdkafka) means empty."),
    KafkaSetting("ssl.enabled.protocols", PARTLY, "TLSv1.2 and TLSv1.3."),
    KafkaSetting("ssl.protocol", PARTLY, "TLSv1.2 and TLSv1.3."),
    KafkaSetting("ssl.cipher.suites", PARTLY,
                 "The default is None: those of Python's ssl module. Also names of OpenSSL. The suites of TLS 1.3 can "
                 "only be used or not used together."),
    KafkaSetting("ssl.provider", REFUSED, _JAVA, ("",)),
    KafkaSetting("ssl.keymanager.algorithm", REFUSED, _JAVA, ("SunX509", "PKIX")),
    KafkaSetting("ssl.trustmanager.algorithm", REFUSED, _JAVA, ("PKIX", "SunX509")),
    KafkaSetting("ssl.secure.random.implementation", REFUSED, _JAVA, ("",)),
    KafkaSetting("ssl.engine.factory.class", REFUSED, _JAVA,
                 ("org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",)),
    KafkaSetting("sasl.mechanism", PARTLY,
                 "Not `AWS_MSK_IAM`. With SASL, GSSAPI must be given too, or a setting of Kerberos."),
    KafkaSetting("sasl.jaas.config", PARTLY, "The login modules of Kafka, and Krb5LoginModule of the JDK."),
    KafkaSetting("sasl.client.callback.handler.class", REFUSED, _HANDLER, ("",)),
    KafkaSetting("sasl.login.callback.handler.class", REFUSED, _HANDLER, (
        "", _OAUTH + "OAuthBearerLoginCallbackHandler", _OAUTH + "secured.OAuthBearerLoginCallbackHandler",
        "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler")),
    KafkaSetting("sasl.login.class", REFUSED, _HANDLER, ("",)),
    KafkaSetting("sasl.kerberos.service.name", PARTLY, "The default is `kafka`, as in other clients."),
    KafkaSetting("sasl.kerberos.kinit.cmd", REFUSED, _TICKET, ("/usr/bin/kinit",)),
    KafkaSetting("sasl.kerberos.min.time.before.relogin", REFUSED, _TICKET, (60000, "60000")),
    KafkaSetting("sasl.kerberos.ticket.renew.jitter", REFUSED, _TICKET, (0.05, "0.05")),
    KafkaSetting("sasl.kerberos.ticket.renew.window.factor", REFUSED, _TICKET, (0.8, "0.8", "0.80")),
    KafkaSetting("sasl.login.refresh.window.factor", SUPPORTED),
    KafkaSetting("sasl.login.refresh.window.jitter", SUPPORTED),
    KafkaSetting("sasl.login.refresh.min.period.seconds", SUPPORTED),
    KafkaSetting("sasl.login.refresh.buffer.seconds", SUPPORTED),
    KafkaSetting("sasl.login.connect.timeout.ms", PARTLY, _AT_LEAST_0),
    KafkaSetting("sasl.login.read.timeout.ms", PARTLY, _AT_LEAST_0),
    KafkaSetting("sasl.login.retry.backoff.ms", PARTLY, _AT_LEAST_0),
    KafkaSetting("sasl.login.retry.backoff.max.ms", PARTLY, _AT_LEAST_0),
    KafkaSetting("sasl.oauthbearer.token.endpoint.url", PARTLY, "No other property is needed to allow the URL."),
    KafkaSetting("sasl.oauthbearer.client.credentials.client.id", SUPPORTED),
    KafkaSetting("sasl.oauthbearer.client.credentials.client.secret", SUPPORTED),
    KafkaSetting("sasl.oauthbearer.scope", SUPPORTED),
    KafkaSetting("sasl.oauthbearer.header.urlencode", SUPPORTED),
    KafkaSetting("sasl.oauthbearer.jwt.retriever.class", REFUSED, _HANDLER, (
        _OAUTH + "DefaultJwtRetriever", _OAUTH + "ClientCredentialsJwtRetriever", _OAUTH + "FileJwtRetriever")),
    KafkaSetting("sasl.oauthbearer.jwt.validator.class", REFUSED, _CLAIMS, (
        _OAUTH + "DefaultJwtValidator", _OAUTH + "ClientJwtValidator")),
    KafkaSetting("sasl.oauthbearer.scope.claim.name", REFUSED, _CLAIMS, ("scope",)),
    KafkaSetting("sasl.oauthbearer.sub.claim.name", REFUSED, _CLAIMS, ("sub",)),
    KafkaSetting("sasl.oauthbearer.clock.skew.seconds", REFUSED, _OF_BROKERS, (30, "30")),
    KafkaSetting("sasl.oauthbearer.expected.audience", REFUSED, _OF_BROKERS, ("",)),
    KafkaSetting("sasl.oauthbearer.expected.issuer", REFUSED, _OF_BROKERS, ("",)),
    KafkaSetting("sasl.oauthbearer.jwks.endpoint.url", REFUSED, _OF_BROKERS, ("",)),
    KafkaSetting("sasl.oauthbearer.jwks.endpoint.refresh.ms", REFUSED, _OF_BROKERS, (3_600_000, "3600000")),
    KafkaSetting("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", REFUSED, _OF_BROKERS, (100, "100")),
    KafkaSetting("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", REFUSED, _OF_BROKERS, (10_000, "10000")),
    KafkaSetting("sasl.oauthbearer.assertion.algorithm", REFUSED, _ASSERTION, ("RS256",)),
    *(KafkaSetting(f"sasl.oauthbearer.assertion.claim.{name}", REFUSED, _ASSERTION, ("",)) for name in _REFUSED_CLAIMS),
    KafkaSetting("sasl.oauthbearer.assertion.claim.exp.seconds", REFUSED, _ASSERTION, (300, "300")),
    KafkaSetting("sasl.oauthbearer.assertion.claim.nbf.seconds", REFUSED, _ASSERTION, (60, "60")),
    KafkaSetting("sasl.oauthbearer.assertion.claim.jti.include", REFUSED, _ASSERTION, (False, "false")),
    KafkaSetting("sasl.oauthbearer.assertion.file", REFUSED, _ASSERTION, ("",)),
    KafkaSetting("sasl.oauthbearer.assertion.private.key.file", REFUSED, _ASSERTION, ("",)),
    KafkaSetting("sasl.oauthbearer.assertion.private.key.passphrase", REFUSED, _ASSERTION, ("",)),
    KafkaSetting("sasl.oauthbearer.assertion.template.file", REFUSED, _ASSERTION, ("",)),
)

#: Settings of librdkafka (with dots) and of kafka-python that Kafka's producer does not have.
OF_OTHER_CLIENTS = (
    KafkaSetting("ssl.context", REFUSED,
                 "an SSLContext cannot be given to the sender, which is another process; use ssl_cafile, ssl_certfile, "
                 "ssl_keyfile, ssl_crlfile, ssl_ciphers and ssl_check_hostname"),
    KafkaSetting("enable.ssl.certificate.verification", REFUSED,
                 "without it, anyone on the way could read the records and the password; give the certificate of the "
                 "brokers' authority as ssl_cafile; ssl_check_hostname=False switches off the check of the name only",
                 (True, "true", "True")),
    KafkaSetting("sasl.oauthbearer.method", REFUSED, "tokens come from sasl_oauthbearer_token_endpoint_url or from "
                 "sasl_oauth_token_provider", ("default", "oidc", "")),
    KafkaSetting("sasl.oauthbearer.grant.type", REFUSED, _ASSERTION, ("client_credentials",)),
    KafkaSetting("sasl.oauthbearer.config", REFUSED, "put what the function needs into the function itself, for "
                 "example with functools.partial; tokens without a signature are not supported", ("",)),
    KafkaSetting("sasl.oauthbearer.metadata.authentication.type", REFUSED, "use sasl_oauth_token_provider", ("none",)),
    KafkaSetting("enable.sasl.oauthbearer.unsecure.jwt", REFUSED, "tokens without a signature are not secure",
                 (False, "false", "False")),
    KafkaSetting("ssl.curves.list", REFUSED, _OPENSSL, ("",)),
    KafkaSetting("ssl.sigalgs.list", REFUSED, _OPENSSL, ("",)),
    KafkaSetting("ssl.providers", REFUSED, _OPENSSL, ("",)),
    KafkaSetting("ssl.engine.location", REFUSED, _OPENSSL, ("",)),
    KafkaSetting("ssl.engine.id", REFUSED, _OPENSSL, ("dynamic",)),
    KafkaSetting("ssl.ca.certificate.stores", REFUSED, "stores of Windows; use ssl_cafile", ("Root", "")),
    KafkaSetting("https.ca.pem", REFUSED, "put the text into a file, and give its path as https_ca_location", ("",)),
)
# fmt: on
