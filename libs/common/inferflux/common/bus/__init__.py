"""Messaging over NATS. `Bus` is the way in; nats-py stays behind it."""

from inferflux.common.contract.requests.stream_limits import StreamLimits

from .bus import Bus
from .jobs import Job, JobConsumer
from .serving import Message, Subscription
from .token_stream import TokenSubscription

__all__ = ["Bus", "Job", "JobConsumer", "Message", "StreamLimits", "Subscription", "TokenSubscription"]
