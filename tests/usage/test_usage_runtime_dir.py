"""Tests that processes of one user share a sender, whatever their environments are, logged in or not."""

from support.confined import namespaces, run_confined

# /tmp/cyproducer-UID, /dev/shm and /run of its own; the rest of /tmp stays, because the package may be there.
SCRIPT = """
    import contextlib, json, os, shutil, subprocess, sys, time

    uid = os.geteuid()
    first, second, login = f"/tmp/cyproducer-{uid}", f"/dev/shm/cyproducer-{uid}", f"/run/user/{uid}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(first, 0o700)
    for path, mode in ((first, "0700"), ("/dev/shm", "1777"), ("/run", "0755")):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=" + mode, "tmpfs", path], check=True)

    ATTACH = '''if True:
        import time
        from cyproducer.config.settings import Settings
        from cyproducer.producer.channel import attach
        settings = Settings.parse(bootstrap_servers="127.0.0.1:9", sender_idle_timeout_ms=60_000)
        attachment = attach.connect(settings, time.monotonic() + 30)
        print(attachment.sender_pid)
        attachment.close()
    '''

    def python(*arguments, **environment):
        command, environment = [sys.executable, *arguments], os.environ | environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cyproducer(*arguments, **environment):
        return python("-m", "cyproducer", *arguments, **environment)

    def pids(**environment):
        found = json.loads(cyproducer("status", "--json", **environment))
        return [str(sender["sender_pid"]) for sender in found]

    def suffixes(path):
        return sorted(name.rpartition(".")[2] for name in os.listdir(path))

    # A service, then a shell of a user who has logged in meanwhile.
    pid = python("-c", ATTACH)
    os.makedirs(login, 0o700)
    os.mkdir("/run/mine")
    shell = {"TMPDIR": "/run/mine", "XDG_RUNTIME_DIR": login, "HOME": "/run/mine"}
    assert python("-c", ATTACH, **shell) == pid
    assert pids(**shell) == [pid.strip()]
    assert cyproducer("stop", **shell).startswith("stopped " + first)
    assert suffixes(first) == ["log"]
    assert os.listdir(login) == os.listdir("/run/mine") == os.listdir("/dev/shm") == []

    # A sender that was started while the first directory could not be used is found when it can be used again.
    # The processes of the stopped sender may still be writing to its log.
    ending = time.monotonic() + 60
    while subprocess.run(["mount", "-o", "remount,bind,ro", first], stderr=subprocess.DEVNULL).returncode:
        assert time.monotonic() < ending, "the directory is still in use"
        time.sleep(0.1)
    pid = python("-c", ATTACH)
    assert suffixes(second) == ["json", "lock", "log", "sock"]
    subprocess.run(["mount", "-o", "remount,bind,rw", first], check=True)
    assert python("-c", ATTACH) == pid
    assert suffixes(first) == ["log"]
    command = [sys.executable, "-m", "cyproducer", "sender", "--bootstrap-servers", "127.0.0.1:9"]
    foreground = subprocess.run(command, capture_output=True, text=True)
    assert "another sender serves " + second in foreground.stderr, foreground.stderr
    assert pids() == [pid.strip()]
    assert cyproducer("stop").startswith("stopped " + second)

    # Asking makes nothing.
    shutil.rmtree(second)
    print(cyproducer("status").splitlines()[0])
    assert not os.path.exists(second) and suffixes(first) == ["log"]
    asked = "/run/mine/asked"
    assert cyproducer("status", CYPRODUCER_RUNTIME_DIR=asked).startswith("no sender of this user is running")
    assert not os.path.exists(asked)
"""


def test_one_sender_for_a_service_and_a_shell() -> None:
    environment = {"CYPRODUCER_RUNTIME_DIR": None, "TMPDIR": None, "XDG_RUNTIME_DIR": None}
    found, out, err = run_confined(namespaces("--mount"), SCRIPT, env=environment, timeout=240)
    assert found == 0, err
    assert out.startswith("no sender of this user is running")
