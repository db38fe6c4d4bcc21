"""The live page: three static files, and the rules by which a browser runs nothing else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FILES = Path(__file__).parents[1] / "page"
_KINDS = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache",
}


def page_routes() -> list[Route]:
    """`/`, and what it refers to. Anybody may read these; what the page then asks for needs a token, if others do."""
    routes = [Route("/", partial(_file, "index.html"), methods=["GET"])]
    return routes + [Route(f"/page/{name}", partial(_file, name), methods=["GET"]) for name in _KINDS]


async def _file(name: str, request: Request) -> Response:
    return Response((FILES / name).read_bytes(), media_type=_KINDS[name], headers=_HEADERS)
