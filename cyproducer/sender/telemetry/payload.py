"""Makes the payloads of pushes in the helper, so that the sender's loop does not wait for them.

Importing the library takes some 60 ms, and a sender with 1,024 topics has 9,000 numbers.

    the job "metrics"   {"data": a marshalled otlp.Request} -> {"codec", "data": the payload}
                        {}: only import the library         -> {}
                        or {"error", "final"}; final: the library cannot be imported
"""

import marshal
from typing import NamedTuple

from cyproducer.sender.system.helper import EndedError, Fields, Helper, HelperError, Job
from cyproducer.sender.telemetry import otlp

__all__ = ["JOBS", "LibraryError", "Payload", "PayloadError", "load_library", "make_payload"]


class Payload(NamedTuple):
    """Compressed metrics."""

    codec: int
    data: bytes


class PayloadError(Exception):
    """A payload cannot be made; the text says why."""


class LibraryError(PayloadError):
    """The library cannot be imported: it is not installed, or its dependencies do not fit."""


async def load_library(helper: Helper) -> None:
    """Let the helper import the library. Raise PayloadError if that fails, HelperError if the helper does not do it."""
    await _ask(helper, {})


async def make_payload(helper: Helper, request: otlp.Request) -> Payload:
    """Return the payload that is requested. Raise PayloadError."""
    try:
        answer = await _ask(helper, {"data": marshal.dumps(tuple(request))})
    except EndedError:
        raise PayloadError("the process that prepares the metrics has ended") from None
    except HelperError as error:
        raise PayloadError(str(error)) from None
    return Payload(answer["codec"], answer["data"])


async def _ask(helper: Helper, fields: Fields) -> Fields:
    answer = await helper.ask("metrics", fields)
    if "error" in answer:
        raise (LibraryError if answer["final"] else PayloadError)(answer["error"])
    return answer


# ---------------------------------------------------------------------- the job


def _make(question: Fields) -> Fields:
    imported = False
    try:
        otlp.load_library()
        imported = True
        if "data" not in question:
            return {}
        codec, payload = otlp.payload(otlp.Request(*marshal.loads(question["data"])))
        return {"codec": codec, "data": payload}
    except (OSError, MemoryError) as error:  # a shortage may be over at the next push
        return {"error": _text(error), "final": False}
    except Exception as error:  # of a library that is not ours
        return {"error": _text(error), "final": not imported}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


JOBS: dict[str, Job] = {"metrics": _make}
