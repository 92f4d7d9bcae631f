"""Compiles the C programs of the benchmark at their first use, and keeps them in the user's cache."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from cyproducer.devkafka.maven import cache_directory


def program(name: str) -> Path:
    """Return the path of the compiled `name`.c. Raise RuntimeError if there is no C compiler or it fails."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    # Compile for this machine, so that the CRC check uses the processor's instruction.
    command = [*compiler, "-O2", "-march=native", "-pthread", "-Wall", "-Wextra", "-o"]
    digest = hashlib.sha256(source.read_bytes() + repr(command).encode()).hexdigest()[:16]
    target = cache_directory() / f"{name.replace('_', '-')}-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / name
        try:
            run = subprocess.run([*command, made, source], capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError(f"{name}.c needs a C compiler: install gcc, or set CC") from None
        if run.returncode:
            raise RuntimeError(f"{name}.c does not compile: {run.stderr.strip()}")
        made.replace(target)
    return target
