"""Gives processes of Spark the environment of this interpreter and of the package under test, and ends them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pyspark

import cyproducer
from support.process import below_of, command_of

END_S = 60.0


def spark_environment() -> dict[str, str]:
    """Return the variables to set: for Spark's launcher, and for its Python workers."""
    root = str(Path(cyproducer.__file__).parents[1])
    # By name: a path with spaces breaks the shell command by which Spark checks for an interpreter.
    interpreter = Path(sys.executable)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "PATH": os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": interpreter.name,
        "PYSPARK_DRIVER_PYTHON": interpreter.name,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def end_spark(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End JVMs of Spark, the last one first, and what they have started.

    Senders are left: they outlive the worker that has started them, and end when they are idle.
    """
    below = [each for process in processes for each in below_of(process.pid)]
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
    _, left = psutil.wait_procs(below, timeout=10)
    for each in left:
        if "cyproducer" not in " ".join(command_of(each)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
