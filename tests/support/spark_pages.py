"""Reads what Spark shows of a running application: its pages, and its REST interface."""

import re
import urllib.error
import urllib.request
from urllib.parse import urljoin

__all__ = ["pages_of"]

STARTS = ("/jobs/", "/stages/", "/SQL/", "/StreamingQuery/", "/environment/", "/executors/", "/connect/")
LINKS = re.compile(r"/(SQL/execution|jobs/job|stages/stage|StreamingQuery/statistics|connect/session)/?\?[\w.=&-]+")
ANSWERS = ("jobs", "stages", "environment", "allexecutors", "sql?details=true&planDescription=true&length=1000")
LIMIT_S = 60.0


def pages_of(url: str, application: str | None = None) -> dict[str, str]:
    """Return the pages at the address of Spark's web interface by their paths, and the answers for an application.

    A page that the application does not have is left out.
    """
    todo = [*STARTS, *(f"/api/v1/applications/{application}/{name}" for name in ANSWERS if application)]
    found: dict[str, str] = {}
    while todo:
        path = todo.pop()
        if path in found:
            continue
        try:
            with urllib.request.urlopen(urljoin(url, path), timeout=LIMIT_S) as page:
                found[path] = page.read().decode()
        except urllib.error.HTTPError:
            continue
        if not path.startswith("/api/"):
            links = (
                link.replace("&amp;", "&").partition("#")[0] for link in re.findall(r'href="([^"]+)"', found[path])
            )
            todo += [path for link in links if LINKS.fullmatch(path := link.removeprefix(url.rstrip("/")))]
    return found
