"""The switch: a process that holds the TAP device of every host, and passes frames on as `wire` says.

    python -m fleet.switch SEED CONTROL_FD PORT:TAP_FD...

A control message is a line of JSON, and so is its answer: {"quality": {...}}, {"cut": name, "pairs": [[1,
2]]}, {"mend": name} or {"counts": true}. Time is that of the monotonic clock.
"""

from __future__ import annotations

import heapq
import json
import os
import selectors
import socket
import sys
import time
from typing import Any

from .wire import Quality, Wire

_FRAME_BYTES = 1 << 16
# Between two hosts no more than this waits, as in a real queue; a frame beyond it is lost.
_MOST_WAITING = 20_000
_FRAMES_AT_ONCE = 64
_IPV4 = b"\x08\x00"


class Switch:
    """Frames between TAP devices, one after the other."""

    def __init__(self, wire: Wire, taps: dict[int, int], control: socket.socket) -> None:
        self._wire = wire
        self._taps = taps
        self._control = control
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._overflow = 0
        self._buffer = b""
        self._is_over = False

    def run(self) -> None:
        """Until the control socket is closed."""
        selector = selectors.DefaultSelector()
        for port, tap in self._taps.items():
            selector.register(tap, selectors.EVENT_READ, port)
        selector.register(self._control, selectors.EVENT_READ)
        while not self._is_over:
            wait_s = None
            if self._waiting:
                wait_s = max(0.0, self._waiting[0][0] - time.monotonic())
            for key, _ in selector.select(wait_s):
                if key.data is None:
                    self._obey()
                else:
                    self._take(int(key.data), key.fd)
            self._deliver()

    def _take(self, port: int, tap: int) -> None:
        """What a host has sent; of much only some, so that others have their turn."""
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame = os.read(tap, _FRAME_BYTES)
            except BlockingIOError:
                return
            # The fleet speaks IPv4 to addresses that it was told; nothing else has a place to go.
            if frame[12:14] != _IPV4 or frame[5] not in self._taps:
                continue
            now_s = time.monotonic()
            to = frame[5]
            due_s = self._wire.due((port, to), now_s)
            if due_s is None:
                continue
            if due_s <= now_s and not self._waiting:
                self._send(to, frame)
            elif len(self._waiting) < _MOST_WAITING:
                self._number += 1
                heapq.heappush(self._waiting, (due_s, self._number, to, frame))
            else:
                self._overflow += 1

    def _deliver(self) -> None:
        now_s = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, to, frame = heapq.heappop(self._waiting)
            self._send(to, frame)

    def _send(self, to: int, frame: bytes) -> None:
        try:
            os.write(self._taps[to], frame)
        except (BlockingIOError, OSError):
            self._overflow += 1

    def _obey(self) -> None:
        received = self._control.recv(_FRAME_BYTES)
        if not received:
            self._is_over = True
            return
        *lines, self._buffer = (self._buffer + received).split(b"\n")
        for line in lines:
            answer = self._answer(json.loads(line))
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "quality" in asked:
            self._wire.quality = Quality(**asked["quality"])
        if "cut" in asked:
            self._wire.cut_off(asked["cut"], [(a, b) for a, b in asked["pairs"]])
        if "mend" in asked:
            self._wire.mend(asked["mend"])
        wire = self._wire
        return {"passed": wire.passed, "lost": wire.lost, "cut": wire.cut, "overflow": self._overflow}


def main() -> None:
    seed, control, *taps = sys.argv[1:]
    by_port = {int(port): int(tap) for port, tap in (pair.split(":") for pair in taps)}
    with socket.socket(fileno=int(control)) as connection:
        Switch(Wire(int(seed)), by_port, connection).run()


if __name__ == "__main__":
    main()
