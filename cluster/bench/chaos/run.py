"""What one blow brought (pure data)."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.bench.chaos.judge import Judgement
from cluster.bench.chaos.schedule import Blow
from cluster.bench.chaos.timeline import Pace


@dataclass(frozen=True, slots=True)
class Run:
    """One blow, and what became of the streams and the service."""

    blow: Blow
    judgement: Judgement
    recovery_s: float | None  # of the pace, drafts included; None: it was not back within the run
    before: Pace
    whole_s: float  # until every replica was there again
    faults: tuple[str, ...]  # what else went wrong: a leak, a service that does not come back
    why_not: str = ""  # this run proves nothing

    @property
    def passed(self) -> bool | None:
        """Whether all was kept; None: it proves nothing."""
        if self.judgement.broken or self.faults:
            return False
        return None if self.why_not else True
