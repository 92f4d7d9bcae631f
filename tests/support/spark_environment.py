"""Gives processes the environment in which Spark's Python workers use this interpreter and the package under test."""

import os
import sys
from pathlib import Path

import pyspark

import cyproducer


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
