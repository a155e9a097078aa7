"""The routes beside those of llama-cpp-python's server, or in their place where those would wait for the
model: health, metrics, the list of models."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from spac.serve.gate import House
from spac.serve.refusal import Refusal


def add_routes(app: FastAPI, house: House) -> None:
    """Put them before those that are there, and have all errors told in OpenAI's form."""
    router = APIRouter()
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "spac"}

    def health() -> dict[str, Any]:
        return {"status": "ok", "running": int(house.line.busy), "queue": house.line.n_waiting}

    def metrics() -> Response:
        return Response(house.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in house.models]}

    def model(name: str) -> dict[str, Any]:
        if name not in house.models:
            raise Refusal(404, f"the model '{name}' is not served here", code="model_not_found")
        return entry(name)

    router.get("/health")(health)
    router.get("/metrics")(metrics)
    router.get("/v1/models")(models)
    router.get("/v1/models/{name:path}")(model)
    known = list(app.router.routes)
    app.include_router(router)
    added = [route for route in app.router.routes if route not in known]
    app.router.routes[:] = [*added, *known]
    app.add_exception_handler(HTTPException, _refuse)


async def _refuse(_request: Request, error: HTTPException) -> JSONResponse:
    refusal = error if isinstance(error, Refusal) else Refusal(error.status_code, str(error.detail))
    return JSONResponse(
        refusal.body(),
        refusal.status,
        headers={name.decode(): value.decode() for name, value in refusal.fields()},
    )
