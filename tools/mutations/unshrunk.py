"""A pytest plugin: an example that fails is not made smaller. That takes minutes, and finds nothing more."""

from hypothesis import Phase, settings


def pytest_configure() -> None:
    """The profile that was loaded, without what comes after a failure."""
    settings.register_profile("unshrunk", settings(), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("unshrunk")
