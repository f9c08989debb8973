"""Everything InferFlux does over NATS. `Bus` is the way in; nats-py stays behind it."""

from inferflux.common.bus.bus import Bus
from inferflux.common.bus.jobs import Job, JobConsumer
from inferflux.common.bus.serving import Message, Subscription
from inferflux.common.bus.token_stream import TokenSubscription
from inferflux.common.stream_limits import StreamLimits

__all__ = ["Bus", "Job", "JobConsumer", "Message", "StreamLimits", "Subscription", "TokenSubscription"]
