"""Finds the tests that changed files need, from the table of packages."""

import re
from pathlib import PurePath

from tiers.git import ROOT, git
from tiers.packages import PACKAGES, package_of, users_of

#: Folders of tests/ with an environment of their own, which has what the others lack: Airflow, a KDC, QEMU.
ENVIRONMENTS = {
    "aarch64": "aarch64",
    "crash": "crash",
    "job_runners": "job_runners",
    "kerberos": "kerberos",
    "systemd": "systemd",
}
#: Folders of tests/ whose modules are imported by tests in others.
SHARED = ("support", "kfake")
GATE = ("style", "unit", "integration/engine", "simulation", "model")
#: Files and folders outside of the packages and of tests/, by the beginning of their path. The first line counts.
OTHERS = {
    "bench/": ("integration/bench",),
    "examples/demo.py": ("usage", "integration/demo"),
    "examples/airflow_dag.py": ("job_runners/test_airflow.py",),
    "examples/dask_workers.py": ("job_runners/test_dask.py",),
    "examples/prefect_flow.py": ("job_runners/test_prefect.py",),
    "examples/ray_tasks.py": ("job_runners/test_ray.py",),
    "examples/": ("usage", "spark"),
    "demo": ("integration/demo",),
    "tools/demo": ("integration/demo",),
    "tools/devkafka": ("integration/devkafka",),
    "tools/dashboard.py": ("integration/cli/test_cli_alerts.py",),
    "deploy/systemd/": ("systemd",),
    "deploy/kubernetes/": ("unit/cli/test_deployed_options.py", "usage/test_usage_pods.py"),
    "deploy/": ("integration/cli/test_cli_alerts.py",),
    "docs/": ("style", "usage/test_docs_examples.py"),
    "pyproject.toml": (*GATE, "integration/build"),
    "setup.py": (*GATE, "integration/build"),
    "MANIFEST.in": ("integration/build",),
    "tox.ini": GATE,
    "": ("style",),
}


def changed_files(since: str) -> list[str]:
    """Return the files that differ from a commit, relative to the root, also those that git does not know yet."""
    tracked = git("diff", "--name-only", "--no-renames", since)
    return sorted({*tracked, *git("ls-files", "--others", "--exclude-standard")})


def tests_of(files: list[str]) -> list[str]:
    """Return the files and folders of tests/ that changed files need, without those that another one contains."""
    needed = {test for file in files for test in _tests_of(file)}
    existing = {test for test in needed if (ROOT / "tests" / test).exists()}
    return sorted(test for test in existing if not any(str(above) in existing for above in PurePath(test).parents))


def by_environment(tests: list[str]) -> dict[str, list[str]]:
    """Return the tests of each environment of tox that must run."""
    found: dict[str, list[str]] = {}
    for test in tests:
        found.setdefault(ENVIRONMENTS.get(PurePath(test).parts[0], "changed"), []).append(test)
    return found


def _tests_of(file: str) -> list[str]:
    path = PurePath(file)
    if path.parts[0] == "tests" and len(path.parts) > 1:
        return _tests_of_a_test(path)
    if path.parts[0] in ("cyproducer", "pyspark_cyproducer"):
        package = package_of(".".join(path.with_suffix("").parts))
        return [test for name in (package, *users_of(package)) for test in PACKAGES[name].tests]
    return list(next(tests for start, tests in OTHERS.items() if file.startswith(start)))


def _tests_of_a_test(path: PurePath) -> list[str]:
    if len(path.parts) == 2:  # tests/conftest.py
        return list(GATE)
    if path.parts[1] == "tiers":
        return ["style"]
    if path.name.startswith("test_"):
        return ["/".join(path.parts[1:])]
    if path.parts[1] in SHARED:
        return _users_of(path.parts[1], path.stem)
    return ["/".join(path.parts[1:-1])]


def _users_of(folder: str, module: str) -> list[str]:
    """Return the tests and folders of tests/ that import a module of a shared folder, also by another such module."""
    imported = re.compile(rf"^from {folder}(\.{module} import| import .*\b{module}\b)", re.MULTILINE)
    found: list[str] = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = PurePath("tests") / file.relative_to(ROOT / "tests")
        if path.stem == module or not imported.search(file.read_text()):
            continue
        found += _tests_of_a_test(path)
    return found
