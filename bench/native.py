"""Compiles the C programs of the benchmark at their first use, and keeps them in the user's cache."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from devkafka.maven import cache_directory

HEADERS = sorted(Path(__file__).parent.glob("*.h"))
TLS_FLAGS = ("-DWITH_TLS", "-lssl", "-lcrypto")
NO_OPENSSL = "openssl/ssl.h"


def program(name: str, tls: bool = False) -> Path:
    """Return the path of the compiled `name`.c, with or without TLS.

    Raise RuntimeError if there is no C compiler, no OpenSSL, or the compiler fails.
    """
    source = Path(__file__).with_name(f"{name}.c")
    content = b"".join(path.read_bytes() for path in (source, *HEADERS))
    libraries = TLS_FLAGS if tls else ()
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    # Compile for this machine, so that the CRC check uses the processor's instruction.
    command = [*compiler, "-O2", "-march=native", "-pthread", "-Wall", "-Wextra", "-o"]
    digest = hashlib.sha256(content + repr((command, libraries)).encode()).hexdigest()[:16]
    target = cache_directory() / f"{name.replace('_', '-')}-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / name
        try:
            run = subprocess.run([*command, made, source, *libraries], capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError(f"{name}.c needs a C compiler: install gcc, or set CC") from None
        if run.returncode and NO_OPENSSL in run.stderr:
            raise RuntimeError(f"{name}.c with TLS needs the header files of OpenSSL: apt-get install libssl-dev")
        if run.returncode:
            raise RuntimeError(f"{name}.c does not compile: {run.stderr.strip()}")
        made.replace(target)
    return target
