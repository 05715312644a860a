"""What every route is given: the service, its names and its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.requests import Request

from octavo.base.errors import NotFoundError
from octavo.config.serve import ServeConfig
from octavo.frontend.server.response_store import ResponseStore
from octavo.frontend.service import TextService
from octavo.frontend.text.dialects.speech import Speech
from octavo.observe.metrics import ServerMetrics

# In a request's scope: its context, where there are several models.
CONTEXT = "octavo.context"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """One server. model_names: the first is shown in answers. created: seconds since the epoch."""

    service: TextService
    config: ServeConfig
    model_names: tuple[str, ...]
    metrics: ServerMetrics
    speech: Speech
    created: int
    responses: ResponseStore = field(default_factory=ResponseStore)

    def served_name(self, asked: str | None) -> str:
        """Return the name to answer under; None asks for the default. Raises NotFoundError for an unknown name."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            raise NotFoundError(
                f"the model {asked!r} does not exist; served here: {', '.join(self.model_names)}", field="model"
            )
        return asked


def context_of(request: Request) -> ServerContext:
    """Return the context of the request's model; with several models and none named, that of them all."""
    context: ServerContext = request.scope.get(CONTEXT) or request.app.state.context
    return context
