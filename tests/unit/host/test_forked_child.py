"""Tests what happens in a forked child: descriptors are closed, and one failure does not prevent the rest."""

from support.process import run_script

CHILD = """
    import os
    from cyproducer.shm import native
    called = []
    def fails():
        called.append("fails")
        raise KeyboardInterrupt
    native.in_child(fails)
    native.in_child(lambda: called.append("next"))
    ours, reused = os.pipe()
    native.own(ours, native.file_of(ours))
    file = native.file_of(reused)
    native.own(reused, file)
    os.dup2(os.open("/dev/null", os.O_RDONLY), reused)  # the program has another file with its number
    pid = os.fork()
    if pid == 0:
        assert called == ["fails", "next"], called
        assert not os.path.exists(f"/proc/self/fd/{ours}")
        assert os.readlink(f"/proc/self/fd/{reused}") == "/dev/null"
        assert native.owned() == []
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert called == []
    assert sorted(native.owned()) == sorted((ours, reused))
    assert native.disown(ours, native.file_of(ours)) is False  # not the same tuple
    assert native.disown(reused, file) is True
    print("done")
"""


def test_descriptors_and_functions_of_a_forked_child() -> None:
    done = run_script(CHILD)
    assert done.stdout == "done\n"
    assert "KeyboardInterrupt" in done.stderr
