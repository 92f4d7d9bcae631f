"""Tests which senders hide their memory from the processes of their own user: those with secrets."""

from pathlib import Path

import pytest
from support.confined import run_confined, without
from support.process import sender_processes, wait_until

# Arguments: whether the settings have secrets, and whether the process may never write a core dump.
LOOK = """
    import os, resource, sys, time
    from cyproducer.config.settings import Settings
    from cyproducer.producer.channel.attach import connect
    if sys.argv[2] == "True":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    secrets = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
    given = {"security_protocol": "SASL_PLAINTEXT", **secrets} if sys.argv[1] == "True" else {}
    settings = Settings.parse(bootstrap_servers="127.0.0.1:9", sender_idle_timeout_ms=200, **given)
    attachment = connect(settings, time.monotonic() + 30)
    try:
        print(os.readlink(f"/proc/{attachment.sender_pid}/fd/0"))
    except PermissionError:
        print("hidden")
"""


@pytest.mark.parametrize("no_core", [False, True])
@pytest.mark.parametrize("secret", [False, True])
def test_only_a_sender_with_secrets_hides_its_memory(secret: bool, no_core: bool, runtime_dir: Path) -> None:
    """A sender without SASL has no secrets, although `sasl_mechanism` has a default."""
    status, out, err = run_confined(without("sys_ptrace", "sys_resource"), LOOK, secret, no_core)
    assert (status, out) == (0, "hidden\n" if secret else "/dev/null\n"), err
    wait_until(lambda: not sender_processes(runtime_dir), what="the end of the sender")
