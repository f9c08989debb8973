"""Bodies of OpenAI's API, read: fields of other servers, and the model that they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from inferflux.common.process.tasks import off_loop_if_large
from inferflux.gateway.http.errors.errors import of_validation
from inferflux.gateway.http.front import bodies
from inferflux.gateway.http.front.bodies import Body
from inferflux.gateway.http.openai.bodies import SamplingBody
from inferflux.gateway.http.openai.fields import names_used, settled
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import model_pb2

_B = TypeVar("_B", bound=Body)
_R = TypeVar("_R")

GENERATION = model_pb2.MODEL_ROLE_GENERATION


def parse(kind: type[_B], body: bytes) -> _B:
    """The body as one of OpenAI's, with what it says under other servers' names.

    Raises:
        InvalidArgument: it is no JSON, a field has a wrong type, or another server's field is not served.
    """
    made = bodies.parse(kind, body)
    if not isinstance(made, SamplingBody):
        return made
    try:
        return settled(made, body)
    except ValidationError as error:
        raise of_validation(error, names_used(made)) from None


class BodyReader:
    """Reads bodies. A model that is not named, or by no name that is known, may stand for the only one."""

    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    async def read(
        self,
        caller: Caller,
        data: bytes,
        kind: type[_B],
        make: Callable[[_B], _R],
        role: model_pb2.ModelRole.ValueType = GENERATION,
    ) -> tuple[_B, _R]:
        """A body, and the request that `make` makes of it.

        Args:
            role: of the model that is meant.

        Raises:
            InvalidArgument: as `parse` and `make`; or no model is named, and there is not exactly one.
        """
        body = await off_loop_if_large(len(data), lambda: parse(kind, data))
        named: str = getattr(body, "model", "")
        meant = await self._models.meant(named, role, caller)
        if meant != named:
            body = body.model_copy(update={"model": meant})
        return body, await off_loop_if_large(len(data), lambda: make(body))
