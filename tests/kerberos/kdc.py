"""Runs a real KDC (MIT Kerberos) on 127.0.0.1 with a realm of its own, and makes keytabs and tickets of its principals.

Everything is in one directory. No file of the system is read or changed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from devkafka.node import LAUNCHER, free_ports
from support.process import wait_until

__all__ = ["REALM", "Kdc", "TicketError"]

REALM = "CYPRODUCER.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
SYSTEM_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/lib/krb5kdc")
PACKAGES = "krb5-kdc krb5-admin-server krb5-user libkrb5-dev libfaketime"


class TicketError(Exception):
    """kinit has failed; the text is what it printed."""


class Kdc:
    """A KDC. Its principals get keys at random, which only their keytabs and its database have.

    config   the file for KRB5_CONFIG; programs that use it reach only this KDC
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self._programs = {name: _program(name) for name in PROGRAMS}
        self._faketime = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None) or _fail("libfaketime")
        [self.port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.is_on_time = True
        self._profile = directory / "kdc.conf"
        self._profile.write_text(
            f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{self.port}\n kdc_tcp_listen = 127.0.0.1:{self.port}\n"
            f"[realms]\n {REALM} = {{\n"
            f"  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n"
            "  max_life = 1d\n  max_renewable_life = 2d\n }\n"
            f"[logging]\n kdc = FILE:{directory}/kdc.log\n"
        )
        self.config = self.config_for("krb5.conf")
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", secrets.token_urlsafe())

    def config_for(self, name: str, *, port: int | None = None, more: str = "") -> Path:
        """Write another file for KRB5_CONFIG.

        port   that of the KDC, instead of this KDC's
        more   further lines of the section libdefaults
        """
        path = self.directory / name
        path.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            # The names of the brokers are taken as they are. Else the principal would depend on /etc/hosts.
            " dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f"{more}[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port or self.port}\n }}\n"
            f"[domain_realm]\n localhost = {REALM}\n"
        )
        return path

    @property
    def pid(self) -> int | None:
        """The process id while the KDC runs, else None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self, *, ahead_s: int = 0) -> None:
        """Start the KDC, and wait until it answers. Its clock is `ahead_s` seconds ahead of that of this host."""
        command = [self._programs["krb5kdc"], "-n", "-r", REALM, "-P", str(self.directory / "pid")]
        environment = self.environment()
        if ahead_s:
            environment |= {"LD_PRELOAD": str(self._faketime), "FAKETIME": f"{ahead_s:+d}s"}
        self.is_on_time = not ahead_s
        log = self.directory / "kdc.log"
        log.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(lambda: log.exists() and "commencing operation" in log.read_text(), 60, "the KDC")

    def close(self) -> None:
        """End the KDC."""
        self.stop()

    def stop(self) -> None:
        """End the KDC. A second call does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let the KDC answer nothing, although connections to it are accepted."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def pids(self) -> list[int]:
        """Return the process id, if the KDC runs. So a test leaves it behind, as it does a KafkaCluster."""
        return [] if self.pid is None else [self.pid]

    def restore(self) -> None:
        """Let the KDC run, with the time of this host."""
        if self.pid is None or not self.is_on_time:
            self.stop()
            self.start()
        elif self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def add(self, principal: str, *, life: str = "1 day", preauthentication: bool = False) -> None:
        """Add a principal. `life`: the longest life of its tickets, for example "10 seconds"."""
        sign = "+" if preauthentication else "-"
        self._admin(f'addprinc -randkey -maxlife "{life}" {sign}requires_preauth {principal}')

    def remove(self, principal: str) -> None:
        self._admin(f"delprinc -force {principal}")

    def requests(self, kind: str = "_REQ") -> int:
        """Return how many requests the KDC has had since its start: AS_REQ, TGS_REQ, or both."""
        return sum(f"{kind} (" in line for line in (self.directory / "kdc.log").read_text().splitlines())

    def keytab(self, principal: str, *, name: str = "") -> Path:
        """Give a principal a new key, and return a keytab with it. The former keytabs are wrong then."""
        path = self.directory / f"{name or principal.replace('/', '-')}.keytab"
        path.unlink(missing_ok=True)
        self._admin(f"ktadd -k {path} {principal}")
        return path

    def tickets(self, keytab: Path, principal: str, *, life: str = "1d", name: str = "cache") -> str:
        """Get a ticket with kinit, and return the name of its cache, as in KRB5CCNAME. Raise TicketError."""
        cache = f"FILE:{self.directory}/{name}"
        command = [self._programs["kinit"], "-k", "-t", str(keytab), "-c", cache, "-l", life, principal]
        run = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60)
        if run.returncode:
            raise TicketError(run.stderr)
        return cache

    def environment(self) -> dict[str, str]:
        """Return the environment of programs that use this KDC."""
        return {
            "PATH": os.environ["PATH"],
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self._profile),
        }

    def _admin(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, program: str, *arguments: str) -> None:
        run = subprocess.run(
            [self._programs[program], *arguments], env=self.environment(), capture_output=True, text=True, timeout=60
        )
        # kadmin.local reports a failed query on standard error, with exit status 0.
        assert not run.returncode and " while " not in run.stderr, run.stderr


def _program(name: str) -> str:
    path = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *SYSTEM_DIRECTORIES]))
    return path or _fail(name)


def _fail(name: str) -> NoReturn:
    pytest.fail(f"{name} is missing, which the tests of Kerberos need: apt-get install {PACKAGES}", pytrace=False)
