"""Distinguishes exceptions of signal handlers, which any step of Python code can raise, from system call errors."""

__all__ = ["pass_on"]


def pass_on(error: BaseException) -> None:
    """Raise `error` again if a signal's handler raised it. Return if a system call failed.

    A handler may raise any OSError, most often TimeoutError, while this package is in a system call. Such an error
    does not come from the kernel and is for the caller. The traceback distinguishes the two: the error of a system call
    is raised in code of this package, the error of a handler in the handler.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is not None and not str(innermost.tb_frame.f_globals.get("__name__")).startswith("cyproducer."):
        raise error
