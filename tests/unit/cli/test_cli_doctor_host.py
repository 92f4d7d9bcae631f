"""Tests what `cyproducer doctor` checks of this host, without a broker or a sender."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from cyproducer.cli.main import main
from cyproducer.config.kinds import host_port
from cyproducer.doctor.limits import memory_limit
from cyproducer.doctor.reach import look_up

NOWHERE = "127.0.0.1:9"


def findings(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["doctor", "--json", *arguments])
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"version", "ok", "findings"}
    assert printed["ok"] is (status == 0)
    for row in printed["findings"]:
        assert set(row) == {"status", "check", "text", "advice"}
        assert row["status"] in ("ok", "warning", "problem", "skipped")
    return status, printed["findings"]


def texts(found: list[dict[str, Any]], check: str, status: str) -> str:
    return "\n".join(row["text"] for row in found if (row["check"], row["status"]) == (check, status))


def test_without_brokers_only_this_host_is_checked(capsys: pytest.CaptureFixture[str], runtime_dir: Path) -> None:
    status, found = findings(capsys)
    assert status == 0
    assert list(dict.fromkeys(row["check"] for row in found)) == [
        "environment",
        "limits",
        "clock",
        "brokers",
        "sharing",
    ]
    assert "not checked without --bootstrap-servers" in texts(found, "brokers", "skipped")
    assert "memory layout" in texts(found, "environment", "ok")
    assert f"the runtime directory is {runtime_dir}" in texts(found, "limits", "ok")
    assert texts(found, "sharing", "ok") == "no sender of this user is running"


def test_lines_fit_a_screen_and_say_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bootstrap-servers", NOWHERE]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    at = next(number for number, line in enumerate(lines) if line.startswith("problem  brokers: 127.0.0.1:9: "))
    advice = next(line for line in lines[at:] if line.startswith("         -> "))
    assert "check that the server runs" in advice


def test_a_port_where_nothing_listens_and_a_name_without_address(
    capsys: pytest.CaptureFixture[str], runtime_dir: Path
) -> None:
    status, found = findings(capsys, "--bootstrap-servers", f"{NOWHERE},no-such-host.invalid:9092")
    assert status == 1
    problems = texts(found, "brokers", "problem")
    assert f"{NOWHERE}: no address can be reached: 127.0.0.1 (Connection refused)" in problems
    assert "no-such-host.invalid cannot be looked up" in problems
    assert "no bootstrap server can be used" in texts(found, "brokers", "skipped")
    assert list(runtime_dir.iterdir()) == []


def test_an_unsupported_setting_is_a_problem_and_this_host_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = findings(capsys, "--bootstrap-servers", NOWHERE, "--set", "no.such=1")
    assert status == 1
    assert found[0]["check"] == "settings" and "no.such" in found[0]["text"] + found[0]["advice"]
    assert "the settings cannot be used" in texts(found, "brokers", "skipped")
    assert texts(found, "environment", "ok")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "sasl.password=hush"], "use --config FILE"),
        (["--set", "linger.ms"], "NAME=VALUE"),
        (["--config", "/no/such/file"], "/no/such/file"),
    ],
)
def test_settings_in_another_form_are_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    assert main(["doctor", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cyproducer doctor: ") and named in printed.err and "hush" not in printed.err


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_a_timeout_is_a_positive_number(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", f"--timeout={seconds}"])
    assert ended.value.code == 2
    assert "is not a number of seconds" in capsys.readouterr().err


def test_a_runtime_directory_is_not_made(
    capsys: pytest.CaptureFixture[str], runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = runtime_dir / "missing"
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(missing))
    status, found = findings(capsys)
    assert status == 0
    assert f"{missing} does not exist yet" in texts(found, "limits", "ok")
    assert not missing.exists()


def test_a_runtime_directory_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = runtime_dir / "open"
    open_to_all.mkdir(mode=0o755)
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(open_to_all))
    status, found = findings(capsys)
    assert status == 1
    assert "its mode is 0755" in texts(found, "limits", "problem")
    open_to_all.rmdir()


def test_the_lowest_memory_limit_of_the_cgroups_counts(tmp_path: Path) -> None:
    below = tmp_path / "service" / "part"
    below.mkdir(parents=True)
    (tmp_path / "service" / "memory.max").write_text("500\n")
    (below / "memory.max").write_text("max\n")
    assert memory_limit("0::/service/part\n", str(tmp_path)) == 500
    (below / "memory.max").write_text("400\n")
    assert memory_limit("0::/service/part\n", str(tmp_path)) == 400
    assert memory_limit("0::/other\n", str(tmp_path)) is None
    first = tmp_path / "memory" / "job"
    first.mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(str(0x7FFFFFFFFFFFF000))
    assert memory_limit("3:cpu:/job\n2:memory:/job\n", str(tmp_path)) is None
    (first / "memory.limit_in_bytes").write_text("300\n")
    assert memory_limit("3:cpu:/job\n2:memory:/job\n", str(tmp_path)) == 300


def test_a_keystore_names_its_package(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    authority = x509.load_pem_x509_certificate(trustme.CA().cert_pem.bytes())
    locked = BestAvailableEncryption(b"hush")
    store.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [authority], locked))
    settings = tmp_path / "settings"
    settings.write_text(
        f"bootstrap.servers={NOWHERE}\nsecurity.protocol=SSL\nssl.truststore.type=PKCS12\n"
        f"ssl.truststore.location={store}\nssl.truststore.password=hush\n"
    )
    os.chmod(settings, 0o600)
    _, found = findings(capsys, "--config", str(settings))
    assert "the package cryptography is installed, which a store in PKCS#12 needs" in texts(found, "environment", "ok")
    assert "hush" not in json.dumps(found)


def test_addresses_are_looked_up() -> None:
    assert host_port("[::1]:9092") == ("::1", 9092)
    assert [target.address for target in look_up("127.0.0.1", 9, 60)] == [("127.0.0.1", 9)]
    with pytest.raises(OSError):
        look_up("a" * 300, 9, 60)
