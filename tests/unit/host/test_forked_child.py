"""Tests what happens in a forked child: descriptors are closed, and one failure does not prevent the rest."""

from support.process import run_script

CHILD = """
    import os
    from cyproducer.host import forked_child
    called = []
    def fails():
        called.append("fails")
        raise KeyboardInterrupt
    forked_child.in_child(fails)
    forked_child.in_child(lambda: called.append("next"))
    ours, reused = os.pipe()
    forked_child.own(ours, forked_child.file_of(ours))
    file = forked_child.file_of(reused)
    forked_child.own(reused, file)
    os.dup2(os.open("/dev/null", os.O_RDONLY), reused)  # the program has another file with its number
    pid = os.fork()
    if pid == 0:
        assert called == ["fails", "next"], called
        assert not os.path.exists(f"/proc/self/fd/{ours}")
        assert os.readlink(f"/proc/self/fd/{reused}") == "/dev/null"
        assert forked_child.owned() == []
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert called == []
    assert sorted(forked_child.owned()) == sorted((ours, reused))
    assert forked_child.disown(ours, forked_child.file_of(ours)) is False  # not the same tuple
    assert forked_child.disown(reused, file) is True
    print("done")
"""


def test_descriptors_and_functions_of_a_forked_child() -> None:
    done = run_script(CHILD)
    assert done.stdout == "done\n"
    assert "KeyboardInterrupt" in done.stderr
