"""Work that is done while the engine's thread waits for llama.cpp."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

Work = Callable[[], None]


class Beside:
    """A thread that takes one piece of work at a time. llama.cpp's calls release the interpreter meanwhile.

    Nothing is locked: who gives it work waits for its end before anything else is done.
    """

    def __init__(self) -> None:
        # None ends the thread.
        self._given: SimpleQueue[Work | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @contextmanager
    def doing(self, work: Work | None) -> Iterator[None]:
        """Have `work` done meanwhile, if there is any; waits for its end.

        Raises:
            BaseException: that `work` raised.
        """
        if work is None:
            yield
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="beside", daemon=True)
            self._thread.start()
        self._given.put(work)
        try:
            yield
        finally:
            error = self._done.get()
            if error is not None:
                raise error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (work := self._given.get()) is not None:
            error = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - raised where its end is waited for
                error = raised
            self._done.put(error)
