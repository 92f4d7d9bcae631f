"""Runs at the start of a program that PyInstaller has made, before the program: such a program is its own sender."""


def _run() -> None:
    import os
    import sys

    if os.environ.get("CYPRODUCER_SPAWNED") and sys.argv[1:2] == ["cyproducer-sender"]:
        from cyproducer.sender.process.frozen import start  # only a sender needs it

        start()
    sys._cyproducer_is_own_sender = True  # type: ignore[attr-defined]


_run()
