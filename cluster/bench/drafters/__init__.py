"""Every kind of drafter on the same questions, in one process; and whether one would pay (`outrider doctor`)."""
