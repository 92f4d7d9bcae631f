"""Makes all checks in their order."""

from collections.abc import Generator, Mapping
from typing import Any

from cyproducer.config.settings import Settings
from cyproducer.doctor.brokers import check_brokers
from cyproducer.doctor.clock import check_clock
from cyproducer.doctor.environment import check_environment
from cyproducer.doctor.finding import Finding, of_error, skipped
from cyproducer.doctor.limits import check_limits
from cyproducer.doctor.sharing import check_sharing
from cyproducer.errors import KafkaConfigurationError

__all__ = ["check_all"]


def check_all(given: Mapping[str, Any], topic: str | None, timeout: float) -> Generator[Finding, None, None]:
    """Yield what each check finds, as soon as it is known.

    given     settings of a producer; without `bootstrap_servers` and `sender`, no brokers are checked
    topic     a topic that is looked for; None: none
    timeout   seconds for each look-up, connection and answer

    Close the iterator to end the sender that it may have started.
    """
    names = {name.replace(".", "_") for name in given}
    has_brokers = not names.isdisjoint({"bootstrap_servers", "sender"})
    settings = None
    if has_brokers or given:
        try:
            settings = Settings.parse(**({} if has_brokers else {"bootstrap_servers": "localhost:9092"}), **given)
        except KafkaConfigurationError as error:
            yield of_error("settings", error)
    yield from check_environment(settings)
    yield from check_limits(settings)
    yield from check_clock()
    cluster_id = None
    if settings is not None and has_brokers:
        cluster_id = yield from check_brokers(settings, topic, timeout)
    elif has_brokers:
        yield skipped("brokers", "they are not checked, because the settings cannot be used")
    else:
        yield skipped("brokers", "they are not checked without --bootstrap-servers or bootstrap.servers")
    yield from check_sharing(settings if has_brokers else None, cluster_id, timeout)
