"""How files of tests are given to the processes of pytest-xdist, where one of these may crash."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class CrashproofFiles(LoadFileScheduling):  # type: ignore[misc]
    """`--dist loadfile`, but a process that crashes costs its test alone.

    xdist gives the test on to the next process, which crashes as well. It gives the files that were done on
    too, as files without tests: at the end of the queue, these keep a process waiting for ever for the test
    that comes after its last one.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """What a process had left goes back to the front, but for the test that it ended with.

        Returns:
            That test; None if it had none.
        """
        left = self.assigned_work[node]
        self.assigned_work[node] = {}
        super().remove_node(node)
        ended_with = next((test for file in left.values() for test, done in file.items() if not done), None)
        for name, file in reversed(left.items()):
            if ended_with in file:
                file[ended_with] = True
            if not all(file.values()):
                self.workqueue[name] = file
                self.workqueue.move_to_end(name, last=False)
        if self.workqueue:
            for other in self.registered_collections.keys() & self.assigned_work.keys():
                self._reschedule(other)
        return ended_with

    def _reschedule(self, node: WorkerController) -> None:
        """A process does not run its last test before it is told the next one, or that there is none."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
