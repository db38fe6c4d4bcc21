"""What one caller may use: requests per second (a token bucket) and requests at once. Pure; the clock is handed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of one caller, per ingress replica; None: no limit."""

    requests_per_s: float | None = None
    burst: int = 10  # requests that may come at once after a quiet time
    max_concurrent: int | None = None


class Exceeded(Exception):
    """A caller asks for more than it may; `str(error)` is one sentence."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s)  # all arguments, so that it survives pickling
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class Bucket:
    """Holds up to `burst` permits and gains `rate` of them a second; a request takes one."""

    def __init__(self, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._level = float(burst)
        self._seen_s = now_s

    def take(self, now_s: float) -> float:
        """0 when a permit was taken, else the seconds until there is one; a clock that went back gains nothing."""
        self._level = min(self._burst, self._level + max(0.0, now_s - self._seen_s) * self._rate)
        self._seen_s = max(self._seen_s, now_s)
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self._rate


class Usage:
    """What one caller uses now."""

    RETRY_S = 1.0  # when a place may be free again, nobody knows

    def __init__(self, name: str, allowance: Allowance, now_s: float) -> None:
        self._name = name
        self.allowance = allowance
        rate = allowance.requests_per_s
        self._bucket = None if rate is None else Bucket(rate, allowance.burst, now_s)
        self.num_running = 0

    def begin(self, now_s: float) -> None:
        """Count a request in; `end` counts it out. Raises `Exceeded`, and then nothing is counted."""
        most = self.allowance.max_concurrent
        if most is not None and self.num_running >= most:
            raise Exceeded(
                f"token {self._name!r} has {self.num_running} requests running and may have {most}: "
                f"retry when one has ended", self.RETRY_S,
            )
        wait_s = 0.0 if self._bucket is None else self._bucket.take(now_s)
        if wait_s > 0:
            raise Exceeded(
                f"token {self._name!r} may send {self.allowance.requests_per_s:g} requests per second: "
                f"retry in {wait_s:.2g} s", wait_s,
            )
        self.num_running += 1

    def end(self) -> None:
        """A request that began has ended."""
        self.num_running -= 1
