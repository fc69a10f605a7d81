"""Which experts have computed the tokens of a request, as its client gathers them."""

from stentor.protocols.ipc.actors import SequenceExperts


class ToldExperts:
    """Of the prompt once, and of what each sequence has drawn. What an engine tells again after another was lost is
    known already."""

    def __init__(self, first: int, prompt_len: int) -> None:
        """``first`` is the first position that was asked for, at most ``prompt_len``."""
        self._prompt_len = prompt_len
        self._ends = {-1: first}
        self._data: dict[int, bytearray] = {}
        """By index of :class:`~stentor.protocols.ipc.actors.SequenceExperts`."""

    def add(self, told: SequenceExperts) -> None:
        """What comes behind a gap is dropped: :meth:`of` says what is missing, to the one who asks for it."""
        known = self._ends.setdefault(told.index, self._prompt_len)
        end = told.start + told.count
        if told.start <= known < end:
            each = len(told.data) // told.count
            self._data.setdefault(told.index, bytearray()).extend(told.data[(known - told.start) * each :])
            self._ends[told.index] = end

    def of(self, index: int, drawn: int) -> bytes:
        """Of the positions that a sequence has computed to draw so many tokens, from the first that was asked for on;
        the last token has not been computed. Raises ValueError where they have not all come."""
        end = self._prompt_len + max(0, drawn - 1)
        known = min(self._ends[-1], self._prompt_len)
        if known == self._prompt_len:
            known = max(known, self._ends.get(index, 0))
        if known < end:
            raise ValueError(f"the engine told the experts of {known} of {end} positions")
        own = self._data.get(index, bytearray())
        if own:
            each = len(own) // (self._ends[index] - self._prompt_len)
            own = own[: (end - self._prompt_len) * each]
        return bytes(self._data.get(-1, b"")) + bytes(own)
