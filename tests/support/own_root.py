"""Lets other users run a test that only root can run: as root of namespaces of their own.

That needs unshare. A test with processes of several users also needs newuidmap, and 65,536 ids in /etc/subuid and
/etc/subgid.
"""

import os
import shutil
import subprocess
import sys

import pytest

from support.confined import namespaces
from support.process import script_environment

# What belongs to root outside of the namespaces belongs to nobody in them, and the sender trusts no such directory. So
# the test gets a root directory and a /tmp of its own, with all that the others hold, and a loopback interface.
_PREPARE = """
set -e
mount -t tmpfs -o mode=0755 tmpfs /mnt
for path in /* /tmp/*; do
    if [ -L "$path" ]; then cp -P "$path" "/mnt$path"
    elif [ "$path" = /tmp ]; then mkdir -m 1777 /mnt/tmp
    elif [ -d "$path" ]; then mkdir "/mnt$path"; mount --rbind "$path" "/mnt$path"
    fi
done
"$1" -c 'from support.confined import loopback_up; loopback_up()'
chroot=$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)
exec "$chroot" /mnt "$@"
"""


def needs_root(item: pytest.Item) -> bool:
    """Return whether the test is marked `as_root` and the user is not root."""
    return os.geteuid() != 0 and item.get_closest_marker("as_root") is not None


def run_as_root(item: pytest.Item) -> None:
    """Run the test in a pytest of its own, as root of a user, a mount and a network namespace. Fail as it fails."""
    test = str(item.path) + item.nodeid[item.nodeid.index("::") :]
    options = ["-q", "-p", "no:cacheprovider", "-c", str(item.config.inipath), "--rootdir", str(item.config.rootpath)]
    several_users = ["--map-auto"] if shutil.which("newuidmap") else []
    command = [*namespaces(*several_users, "--mount", "--net"), "sh", "-c", _PREPARE, "sh"]
    command += [sys.executable, "-m", "pytest", *options, test]
    environment = script_environment({name: None for name in os.environ if name.startswith("PYTEST_")})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"as root of its own namespaces, the test fails:\n{done.stdout}\n{done.stderr}", pytrace=False)
