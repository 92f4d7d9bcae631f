"""Runs systemd in namespaces of its own, with the units of `deploy/systemd` as they are."""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.process import wait_until

import cyproducer

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = "cyproducer.service"

# Arguments: the directory of the test, the prefix of Python, and directories of modules. Nothing of it reaches the
# host: /proc/sys is read-only, and the units of the host are hidden.
BOOT = """
set -e
work=$1 python=$2; shift 2
mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /usr/lib/systemd/system
mount -t tmpfs -o mode=755 tmpfs /opt
mkdir -p /opt/cyproducer/bin /opt/cyproducer/python
mount --rbind "$python" /opt/cyproducer/python
path=
for each in "$@"; do
    mkdir "/opt/cyproducer/$#"
    mount --rbind "$each" "/opt/cyproducer/$#"
    path=$path:/opt/cyproducer/$#
    shift
done
cat > /opt/cyproducer/bin/python <<END
#!/bin/sh
export PYTHONPATH=${path#:} PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH=/opt/cyproducer/python/lib
exec /opt/cyproducer/python/bin/python3 "\\$@"
END
cat > /opt/cyproducer/bin/cyproducer <<END
#!/bin/sh
exec /opt/cyproducer/bin/python -m cyproducer "\\$@"
END
chmod 755 /opt/cyproducer/bin/*
mount -t tmpfs -o mode=755 tmpfs /mnt
cp -a /etc /mnt/etc
mount --bind /mnt/etc /etc
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system /etc/cyproducer
cp "$work"/units/* /etc/systemd/system
cp "$work"/sender.env /etc/cyproducer
echo 'cyproducer:x:61234:61234::/:/usr/sbin/nologin' >> /etc/passwd
echo 'cyproducer:x:61234:' >> /etc/group
for target in boot sysinit basic shutdown multi-user network-online; do
    printf '[Unit]\\nDefaultDependencies=no\\nAllowIsolate=yes\\n' > /etc/systemd/system/$target.target
done
export container=unshare
exec /lib/systemd/systemd --unit=boot.target --log-target=console --log-level=info --show-status=0
"""


class Systemd:
    """A running systemd. `work` has what it has logged, and what its service has logged."""

    def __init__(self, work: Path, cgroup: Path) -> None:
        self.work = work
        self.cgroup = cgroup
        cgroup.mkdir()
        code = Path(cyproducer.__file__).resolve().parents[1]
        command = ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--uts", "--kill-child"]
        command += ["sh", "-c", BOOT, "sh", work, sys.base_prefix, code, sysconfig.get_path("purelib")]
        with open(work / "systemd.log", "wb") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_up, 60, "a running systemd")

    def _is_up(self) -> bool:
        assert self.process.poll() is None, (self.work / "systemd.log").read_text()
        return self.process_1() > 0 and "running" in self.run("systemctl", "is-system-running", check=False)

    def process_1(self) -> int:
        """Return the pid of systemd in the namespace of the test; 0 before it exists."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def inside(self, *command: str) -> list[str]:
        """Return the command line of a command in the namespaces of systemd."""
        return ["nsenter", "--target", str(self.process_1()), "--mount", "--pid", "--cgroup", "--uts", *command]

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command there, and return what it has written."""
        ended = subprocess.run(self.inside(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert ended.returncode == 0 or not check, f"{ended.stdout}\n{self.log()}"
        return ended.stdout

    def add_drop_in(self, unit: str, *lines: str) -> None:
        """Add lines to the section [Service] of a unit."""
        directory = f"/etc/systemd/system/{unit}.d"
        text = "".join(f"{line}\n" for line in ("[Service]", *lines))
        self.run("sh", "-c", f'mkdir {directory} && printf %s "$1" > {directory}/test.conf', "sh", text)
        self.run("systemctl", "daemon-reload")

    def set_options(self, options: str) -> None:
        """Change CYPRODUCER_OPTIONS in sender.env."""
        line = f'CYPRODUCER_OPTIONS="{options}"'
        self.run("sh", "-c", 'echo "$1" > /etc/cyproducer/sender.env', "sh", line)

    def show(self, name: str) -> str:
        """Return a property of the service."""
        return self.run("systemctl", "show", UNIT, "--property", name, "--value").strip()

    def processes(self) -> set[int]:
        """Return the pids of the service in the namespace of the test."""
        path = self.cgroup / "system.slice" / UNIT / "cgroup.procs"
        return set(map(int, path.read_text().split())) if path.exists() else set()

    def log(self) -> str:
        """Return the log of systemd and that of the service."""
        return "".join(path.read_text() for path in self.work.glob("*.log"))

    def end(self) -> None:
        """End systemd with all processes that it has started."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        wait_until(self._removed, 60, "the end of the processes of systemd")

    def _removed(self) -> bool:
        try:
            for path, _, _ in os.walk(self.cgroup, topdown=False):
                os.rmdir(path)
        except OSError:
            return False  # a process still ends
        return True


def cgroup2() -> Path:
    """Return where the hierarchy of cgroup2 is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(path)
    pytest.fail("these tests need cgroup2", pytrace=False)
