"""Checks the environment: versions, the libraries that the settings need, and the interpreter that runs the sender."""

import importlib.util
import platform
import re
import sys
from collections.abc import Iterator

from cyproducer.config.settings import Settings
from cyproducer.doctor.finding import Finding, of_error, ok, problem
from cyproducer.errors import SenderUnavailableError
from cyproducer.producer.channel.spawn import interpreters
from cyproducer.shm.native import LAYOUT_VERSION
from cyproducer.version import VERSION

__all__ = ["check_environment"]

CHECK = "environment"
_KERNEL_FROM = 5, 4


def check_environment(settings: Settings | None) -> Iterator[Finding]:
    """Yield what is found. `settings`: None if none are known."""
    yield ok(
        CHECK,
        f"cyproducer {VERSION}, memory layout {LAYOUT_VERSION}, {platform.python_implementation()} "
        f"{platform.python_version()}, {platform.system()} {platform.release()}, {platform.machine()}",
    )
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release is not None and (int(release[1]), int(release[2])) < _KERNEL_FROM:
        yield problem(CHECK, f"Linux {platform.release()} is too old", "use Linux 5.4 or later")
    if settings is not None:
        for package, extra, why in _libraries(settings):
            if importlib.util.find_spec(package) is not None:
                yield ok(CHECK, f"the package {package} is installed, which {why} needs")
            else:
                advice = f"pip install 'cyproducer[{extra}]'"
                yield problem(CHECK, f"the package {package} is not installed, which {why} needs", advice)
    try:
        yield ok(CHECK, f"the interpreter of the sender is {interpreters()[0]} ({sys.implementation.cache_tag})")
    except SenderUnavailableError as error:
        yield of_error(CHECK, error)


def _libraries(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield (package, extra of this package, what needs it) of the optional packages that the settings need."""
    if settings.security_protocol.startswith("SASL") and settings.sasl_mechanism == "GSSAPI":
        yield "gssapi", "kerberos", "sasl_mechanism=GSSAPI"
    if settings.ssl_keystore_location or settings.ssl_truststore_location:
        yield "cryptography", "pkcs12", "a store in PKCS#12"
