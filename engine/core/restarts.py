"""When a worker that died is followed by another, and when that is given up."""

from ..processes.supervisor import Restart, RestartPolicy


class Restarts:
    """Counts deaths in a row. A completed step ends the row, and so does a death that has been explained."""

    def __init__(self, max_deaths: int) -> None:
        self._policy = RestartPolicy(Restart.ON_FAILURE, max_failures=max_deaths)
        self.in_a_row = 0
        self.total = 0
        """Workers started in place of another."""

    @property
    def exhausted(self) -> bool:
        return self.in_a_row >= self._policy.max_failures

    def died(self) -> None:
        self.in_a_row += 1

    def settled(self) -> None:
        """A step completed, or the deaths had a reason that is gone."""
        self.in_a_row = 0

    def next_delay(self) -> float:
        """Seconds to wait before the next start, which this counts: none after the first death of a row."""
        self.total += 1
        return self._policy.delay(self.in_a_row)
